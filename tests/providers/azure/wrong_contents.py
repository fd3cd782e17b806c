"""The table of wrong Azure ML requests, continued: image, inputs, names, secrets, tags, ways into
the job.
"""

from __future__ import annotations

from tests.providers.wrong_rows import many, row

ROWS = [
    # image
    row(
        "AWS's container",
        "1:1",
        "image: dlc:pytorch-2.8 is a container of AWS",
        "azure: auto}",
        job="image: dlc:pytorch-2.8\n",
    ),
    row(
        "image in AWS's registry",
        "1:1",
        "is in AWS's registry, where Azure ML cannot log in",
        job="image: 123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1\n",
    ),
    row(
        "environment without a version",
        "1:1",
        "image: 'azureml:mine' does not name an environment",
        job="image: azureml:mine\n",
    ),
    row(
        "image with a space",
        "1:9",
        "image.azure: 'my image' is not an image address",
        job="image: {azure: my image}\n",
    ),
    row(
        "Dockerfile that is not there",
        "1:9",
        "image.build: no such file: ",
        "/docker/Dockerfile",
        job="image: {build: docker/Dockerfile}\n",
    ),
    row(
        "image for a cloud that is none",
        "1:9",
        "image.azur: unknown provider (did you mean 'azure'?)",
        job="image: {azur: x}\n",
    ),
    # inputs
    row(
        "input in S3",
        "1:10",
        "inputs.train: s3://b/x/ cannot be read by the azure provider",
        job="inputs: {train: 's3://b/x/'}\n",
    ),
    row(
        "input folder that is not there",
        "1:10",
        "inputs.train: no such file or folder: ",
        "/data",
        job="inputs: {train: ./data}\n",
    ),
    row(
        "input of this machine streamed",
        "1:10",
        "inputs.train: . is uploaded first",
        "hint: mode: copy",
        job="inputs: {train: {uri: ., mode: stream}}\n",
    ),
    row(
        "data asset without a version",
        "1:10",
        "inputs.train: azureml:mnist does not name a data asset",
        job="inputs: {train: 'azureml:mnist'}\n",
    ),
    row(
        "datastore without a path",
        "1:10",
        "inputs.train: azureml://x is not a datastore path",
        job="inputs: {train: 'azureml://x'}\n",
    ),
    # environment, secrets, tags, checkpoints, arguments
    row(
        "Azure ML's own variable",
        "1:7",
        "env.azureml_run_id: is reserved by Azure ML",
        job="env: {azureml_run_id: x}\n",
    ),
    row(
        "secret of another cloud's store",
        "1:19",
        "secrets.TOKEN.azure: expected 'keyvault:",
        job="secrets: {TOKEN: {azure: 'ssm:token'}}\n",
    ),
    row(
        "secret without its vault",
        "1:11",
        "secrets.TOKEN: is not a Key Vault secret",
        "keyvault:VAULT/NAME",
        job="secrets: {TOKEN: {azure: 'keyvault:token'}}\n",
    ),
    row(
        "tag without a name",
        "1:8",
        "a tag's name has 1 to 100 characters, this one 0",
        job="tags: {'': x}\n",
    ),
    row(
        "tag value too long",
        "1:8",
        "tags.team: a tag has at most 1000 characters",
        job=f"tags: {{team: '{'x' * 1001}'}}\n",
    ),
    row(
        "too many tags",
        "1:1",
        "tags: 41 tags and up to 11 set by cloudtrain are more than a job can have: 50",
        job="tags:\n" + many(41, "t#: x"),
    ),
    row(
        "checkpoints in S3",
        "1:15",
        "checkpoints.uri: 's3://b/c' is not a datastore path",
        job="checkpoints: {uri: 's3://b/c'}\n",
    ),
    row(
        "arguments that do not fit",
        "2:1",
        "args: ",
        "bytes are more than can be sent with a job (100000)",
        job=f"entrypoint: -m train\nargs: [{'x' * 99_900}]\n",
    ),
    # ways into the job
    row(
        "service that is none",
        "1:9",
        "azure.services: ",
        "no service 'telnet'",
        "known: ssh, jupyter",
        job="azure: {services: [telnet]}\n",
    ),
    row(
        "ssh without a key",
        "1:9",
        "azure.services: ssh needs your public key",
        job="azure: {services: ssh}\n",
    ),
    row(
        "a key's file and not its content",
        "1:24",
        "azure.ssh_key: is not a public key",
        job="azure: {services: ssh, ssh_key: ~/.ssh/id_ed25519.pub}\n",
    ),
    # what contradicts itself
    row(
        "a model beside a size",
        "1:33",
        "resources.instance: conflicts with gpu",
        job="resources: {gpus: 1, gpu: H100, instance: {azure: Standard_DS3_v2}}\n",
    ),
]
