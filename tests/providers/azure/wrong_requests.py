"""Wrong Azure ML requests: a job.yaml, the line to blame, and words of the error."""

from __future__ import annotations

from tests.providers.common_requests import many, row

# Wrong Azure ML requests: a job.yaml, the line to blame, and words of the error.

HOUR = "limits: {max_runtime: 1 h}\n"
UNPRICED = "limits: the price of this machine is unknown, so the cost of the job is not limited"

ROWS = [
    # names
    row(
        "job name with an underscore",
        "1:1",
        "name: 'bad_name' is not a valid job name",
        job="name: bad_name\n",
    ),
    # machines
    row(
        "size without Standard_",
        "1:24",
        "resources.instance.azure: 'ND96isr_H100_v5' is not an Azure VM size",
        "hint: such as Standard_NC24ads_A100_v4",
        job="resources: {instance: {azure: ND96isr_H100_v5}, gpus: 8}\n" + HOUR,
    ),
    row(
        "second size of a list is none",
        "1:58",
        "resources.instance.azure[1]: 'nope' is not an Azure VM size",
        job="resources: {instance: {azure: [Standard_ND96isr_H100_v5, nope]}, gpus: 8}\n" + HOUR,
    ),
    row(
        "a count that the model alone does not have",
        "1:22",
        "no azure instance type has 4 x H100",
        "8 (Standard_ND96isr_H100_v5)",
        job="resources: {gpus: 4, gpu: H100}\n",
    ),
    row(
        "a GPU that only AWS has",
        "1:22",
        "no azure instance type has 1 x L4",
        job="resources: {gpus: 1, gpu: L4}\n",
    ),
    row(
        "two GPUs that only AWS has",
        "1:32",
        "resources.gpu[1]: no azure instance type has 1 x A10G",
        "job.yaml:1:28: resources.gpu[0]: no azure instance type has 1 x L4",
        job="resources: {gpus: 1, gpu: [L4, A10G]}\n",
    ),
    row(
        "shared memory for nobody",
        "1:13",
        "resources.shm: is less than a MiB",
        job="resources: {shm: 1 KB}\n",
    ),
    # serverless, spot and clusters
    row(
        "cluster with an underscore",
        "1:9",
        "azure.compute: 'my_gpus' is no",
        job="azure: {compute: my_gpus}\n" + HOUR,
    ),
    # time and money
    row(
        "running too long on spot",
        "2:10",
        "limits.max_runtime: 8 d is longer than Azure ML runs low-priority machines",
        "hint: 7 d at most",
        job="resources: {spot: true}\nlimits: {max_runtime: 8 d}\n",
    ),
    row(
        "money for too long",
        "2:29",
        "limits.max_cost: 2,053,231 s (23 d 18 h) is longer than Azure ML runs a job",
        job="resources: {gpus: 1}\nlimits: {max_runtime: 30 d, max_cost: 300 USD}\n",
    ),
    row(
        "money for a cluster of unknown machines",
        "2:10",
        "limits.max_cost: cannot be kept",
        "hint: name the cluster's machines with resources.instance, or replace max_cost",
        job="azure: {compute: my-cluster}\nlimits: {max_cost: 50 USD}\n",
    ),
    row(
        "no limit for a cluster of unknown machines",
        "job.yaml: ",
        UNPRICED,
        job="azure: {compute: my-cluster}\n",
    ),
    row(
        "no location, and no limit",
        "job.yaml: ",
        UNPRICED,
        job="{}\n",
        CLOUDTRAIN_AZURE_LOCATION="",
    ),
    row(
        "a price list that is not there",
        "environment CLOUDTRAIN_PRICES: prices: gone.csv: No such file",
        job="{}\n",
        CLOUDTRAIN_PRICES="gone.csv",
    ),
    # account
    row(
        "no subscription",
        "job.yaml: ",
        "azure.subscription: is not set",
        "az account show",
        job="{}\n",
        CLOUDTRAIN_AZURE_SUBSCRIPTION="",
    ),
    row(
        "no workspace",
        "job.yaml: ",
        "azure.workspace: is not set",
        "hint: the Azure ML workspace to run in",
        job="{}\n",
        CLOUDTRAIN_AZURE_WORKSPACE="",
    ),
    row(
        "subscription by its name",
        "1:9",
        "azure.subscription: 'Pay-As-You-Go' is not a subscription",
        job="azure: {subscription: Pay-As-You-Go}\n",
    ),
    row(
        "resource group that ends in a dot",
        "1:9",
        "azure.resource_group: 'my.group.' is no",
        job="azure: {resource_group: my.group.}\n",
    ),
    row(
        "location that is none",
        "1:9",
        "azure.location: 'west_europe' is not a location",
        job="azure: {location: west_europe}\n" + HOUR,
    ),
    row(
        "datastore with a hyphen",
        "1:9",
        "azure.datastore: 'my-store' is not a datastore",
        job="azure: {datastore: my-store}\n",
    ),
    row(
        "datastore of the settings as an address",
        "environment CLOUDTRAIN_AZURE_DATASTORE: azure.datastore: ",
        "hint: its name alone, such as workspaceblobstore",
        job="{}\n",
        CLOUDTRAIN_AZURE_DATASTORE="azureml://datastores/mine",
    ),
    row(
        "a job that acts as nobody",
        "1:9",
        "azure.identity: ",
        "managed or user",
        job="azure: {identity: me}\n",
    ),
    row(
        "looks without a pause",
        "environment CLOUDTRAIN_AZURE_POLL: azure.poll: ",
        job="{}\n",
        CLOUDTRAIN_AZURE_POLL="0",
    ),
]


# The table of wrong Azure ML requests, continued: image, inputs, names, secrets, tags, ways into
# the job.

CONTENT_ROWS = [
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
