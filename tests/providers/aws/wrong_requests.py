"""Wrong SageMaker requests: a job.yaml, the line to blame, and words of the error."""

from __future__ import annotations

from tests.providers.common_requests import limit, many, row

# Wrong SageMaker requests: a job.yaml, the line to blame, and words of the error.

ECR = "123456789012.dkr.ecr.us-east-1.amazonaws.com/train:1"

ROWS = [
    # machines
    limit(
        "type that does not exist",
        "2:14",
        "resources.instance.aws",
        "known values",
        "ml.p99.48xlarge",
        job=(
            "resources:\n  instance: {aws: ml.p99.48xlarge}\n  gpus: 8\nlimits: {max_runtime: 1"
            " h}\n"
        ),
    ),
    row(
        "type without ml.",
        "1:24",
        "p4d.24xlarge",
        "ml.p4d.24xlarge",
        job="resources: {instance: {aws: p4d.24xlarge}, gpus: 8}\nlimits: {max_runtime: 1 h}\n",
    ),
    limit(
        "second type of a list does not exist",
        "1:46",
        "resources.instance.aws[1]",
        "ml.nope",
        job=(
            "resources: {instance: {aws: [ml.p5.48xlarge, ml.nope]}, gpus: 8}\nlimits:"
            " {max_runtime: 1 h}\n"
        ),
    ),
    limit(
        "six types",
        "1:24",
        "resources.instance.aws",
        "at most 5",
        job=(
            "resources: {instance: {aws: [ml.g5.xlarge, ml.g5.2xlarge, ml.g5.4xlarge,"
            " ml.g5.8xlarge, ml.g5.16xlarge, ml.g6.xlarge]}, gpus: 1}\n"
        ),
    ),
    row(
        "AWS's own accelerators",
        "1:24",
        "ml.trn1.2xlarge has AWS's own accelerators",
        job="resources: {instance: {aws: ml.trn1.2xlarge}}\nlimits: {max_runtime: 1 h}\n",
    ),
    # spot and capacity
    row(
        "spot with a choice of types",
        "1:24",
        "a choice of 2 instance types cannot be combined with spot",
        job="resources: {instance: {aws: [ml.g5.xlarge, ml.g6.xlarge]}, gpus: 1, spot: true}\n",
    ),
    row(
        "spot with kept machines",
        "2:7",
        "aws.keep_alive: cannot go with spot",
        job="resources: {gpus: 1, spot: true}\naws: {keep_alive: 10 min}\n",
    ),
    row(
        "kept machines with a choice of types",
        "1:24",
        "cannot be combined with aws.keep_alive",
        job=(
            "resources: {instance: {aws: [ml.g5.xlarge, ml.g6.xlarge]}, gpus: 1}\naws: {keep_alive:"
            " 10 min}\n"
        ),
    ),
    limit(
        "kept too long",
        "1:7",
        "aws.keep_alive",
        "is 7 h, at most 6 h",
        job="aws: {keep_alive: 7 h}\n",
    ),
    row(
        "spot waits shorter than it runs",
        "2:28",
        "limits.max_wait: is shorter than max_runtime",
        job="resources: {gpus: 1, spot: true}\nlimits: {max_runtime: 2 h, max_wait: 1 h}\n",
    ),
    row(
        "spot waits shorter than the default runtime",
        "2:10",
        "limits.max_wait",
        "1 h is shorter than the job may run: 1 d",
        job="resources: {gpus: 1, spot: true}\nlimits: {max_wait: 1 h}\n",
    ),
    row(
        "waiting for a CPU machine",
        "1:10",
        "limits.max_wait: SageMaker limits the waiting time of GPU machines",
        job="limits: {max_wait: 1 h}\n",
    ),
    row(
        "waiting too short",
        "2:10",
        "limits.max_wait",
        "is 10 min, at least 30 min",
        job="resources: {gpus: 1}\nlimits: {max_wait: 10 min}\n",
    ),
    row(
        "too many retries",
        "1:10",
        "limits.retries: must be at most 30",
        job="limits: {retries: 31}\n",
    ),
    # money
    row(
        "a price of another region does not count",
        "limits: the price of this machine is unknown",
        "cloudtrain gpus --provider aws --region eu-central-1 --refresh",
        job="resources: {gpus: 1}\naws: {region: eu-central-1}\n",
    ),
    # account
    row(
        "no role",
        "aws.role: is not set",
        "hint: the role that the job runs as",
        job="{}\n",
        CLOUDTRAIN_AWS_ROLE="",
    ),
    row("no bucket", "aws.bucket: is not set", job="{}\n", CLOUDTRAIN_AWS_BUCKET=""),
    row("no region", "aws.region: is not set", job="{}\n", CLOUDTRAIN_AWS_REGION=""),
    row(
        "role that is not an ARN",
        "1:7",
        "aws.role: 'this-is-not-an-arn-at-all' is not a role ARN",
        job="aws: {role: this-is-not-an-arn-at-all}\n",
    ),
    row(
        "role of the settings that is not an ARN",
        "environment CLOUDTRAIN_AWS_ROLE: aws.role",
        job="{}\n",
        CLOUDTRAIN_AWS_ROLE="arn:aws:iam::12:role/short-account",
    ),
    row(
        "region with a typo",
        "1:7",
        "aws.region: AWS keeps no Deep Learning Containers in 'eu-centrl-1'",
        "(did you mean 'eu-central-1'?)",
        job="aws: {region: eu-centrl-1}\n",
    ),
    row(
        "region that is none",
        "1:7",
        "aws.region: 'frankfurt' is not a region",
        job=f"aws: {{region: frankfurt}}\nimage: {ECR}\nlimits: {{max_runtime: 1 h}}\n",
    ),
    row(
        "bucket with an address",
        "1:7",
        "aws.bucket: 's3://bucket' is not a valid bucket name",
        job="aws: {bucket: 's3://bucket'}\n",
    ),
    row("bucket in capitals", "1:7", "aws.bucket", "lower-case", job="aws: {bucket: MyBucket}\n"),
    row(
        "subnets alone",
        "1:7",
        "aws.subnets: needs aws.security_groups beside it",
        job="aws: {subnets: [subnet-1]}\n",
    ),
    limit(
        "seventeen subnets",
        "1:7",
        "aws.subnets",
        "at most 16",
        job="aws: {subnets: ["
        + ", ".join(f"subnet-{n}" for n in range(17))
        + "], security_groups: [sg-1]}\n",
    ),
    row(
        "key of another region",
        "1:7",
        "aws.kms_key: is in eu-west-1",
        job="aws: {kms_key: 'arn:aws:kms:eu-west-1:123456789012:key/k'}\n",
    ),
    row(
        "secrets without network",
        "2:7",
        "aws.network_isolation: prevents the job from reading its secrets",
        job="secrets: {TOKEN: {aws: 'ssm:token'}}\naws: {network_isolation: true}\n",
    ),
    row(
        "a shell without network",
        "1:7",
        "aws.network_isolation: rules out aws.remote_debug",
        job="aws: {network_isolation: true, remote_debug: true}\n",
    ),
    # image
    row(
        "image outside ECR",
        "1:1",
        "image: SageMaker cannot pull 'pytorch/pytorch:2.10'",
        "hint: push it",
        job="image: pytorch/pytorch:2.10\n",
    ),
    row(
        "image of another region",
        "1:1",
        "image: ",
        "is in eu-west-1, the job runs in us-east-1",
        job="image: 123456789012.dkr.ecr.eu-west-1.amazonaws.com/train:1\n",
    ),
    limit(
        "image that is too long", "1:1", "image: ", "at most 255", job=f"image: {ECR}{'x' * 250}\n"
    ),
    row(
        "image to be built of nothing, for nowhere",
        "1:9",
        "image.build: ",
        "no file /",
        "aws.repository: is not set: no repository is configured for the image",
        job="image: {build: Dockerfile}\n",
    ),
    row(
        "image to be kept under a tag",
        "1:7",
        "aws.repository: 'train:1' is not an ECR repository",
        job="aws: {repository: 'train:1'}\n",
    ),
    row(
        "container of no version",
        "1:1",
        "image: unknown container 'dlc:pytorch-2.99'",
        job="image: dlc:pytorch-2.99\n",
    ),
]


# The table of wrong SageMaker requests, its second part: inputs, environment, secrets, tags,
# checkpoints.

CONTENT_ROWS = [
    # inputs
    row(
        "input on this machine",
        "1:10",
        "inputs.train: ./data cannot be read by the aws provider",
        job="inputs: {train: ./data}\n",
    ),
    row(
        "input of another cloud",
        "1:10",
        "inputs.train: azureml://x cannot be read",
        job="inputs: {train: 'azureml://x'}\n",
    ),
    row(
        "one object streamed",
        "1:10",
        "inputs.train: s3://b/x.csv is one object",
        job="inputs: {train: {uri: 's3://b/x.csv', mode: stream}}\n",
    ),
    limit(
        "nineteen inputs",
        "1:1",
        "inputs: has 21 items, at most 20, 2 of them set by cloudtrain",
        job="inputs:\n" + many(19, "n#: s3://b/n#/"),
    ),
    limit(
        "input at too long an address",
        "1:10",
        "inputs.train",
        "at most 1024",
        job=(
            "inputs: {train:"
            f" 's3://b/{'x' * 200}/{'x' * 200}/{'x' * 200}/{'x' * 200}/{'x' * 250}/'}}\n"
        ),
    ),
    # environment, secrets, tags, checkpoints
    limit(
        "value of 513 characters", "1:7", "env.X", "at most 512", job=f"env: {{X: '{'y' * 513}'}}\n"
    ),
    row("variable with a dash", "1:7", "env.MY-VAR", job="env: {MY-VAR: x}\n"),
    limit(
        "a hundred and one variables",
        "1:1",
        "env: has 101 entries, at most 100, 1 of them set by cloudtrain",
        job="env:\n" + many(100, "V#: x"),
    ),
    row(
        "SageMaker's own variable",
        "1:7",
        "env.SAGEMAKER_BASE_DIR: is reserved by SageMaker",
        job="env: {SAGEMAKER_BASE_DIR: /tmp}\n",
    ),
    row(
        "tag of AWS's own",
        "1:8",
        "tags.aws:team: names that begin with aws: are reserved",
        job="tags: {'aws:team': x}\n",
    ),
    row(
        "tag with a strange character",
        "1:8",
        "tags.team",
        "'€' is not allowed in a tag",
        job="tags: {team: 'a€b'}\n",
    ),
    limit(
        "tag value too long",
        "1:8",
        "tags.team",
        "at most 256",
        job=f"tags: {{team: '{'x' * 257}'}}\n",
    ),
    limit(
        "too many tags",
        "1:1",
        "tags: has 58 items, at most 50, 8 of them set by cloudtrain",
        job="tags:\n" + many(50, "t#: x"),
    ),
]
