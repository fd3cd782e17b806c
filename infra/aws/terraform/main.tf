# The stack of ../cloudtrain.yaml for those who deploy by Terraform: the very same template, so the very same rights.
# Give the provider's region and credentials as you do elsewhere. Data is kept by `terraform destroy`, as the template says.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

resource "aws_cloudformation_stack" "cloudtrain" {
  # checkov:skip=CKV_AWS_124:terraform itself waits for the stack and says what failed
  name          = var.name
  template_body = file("${path.module}/../cloudtrain.yaml")
  capabilities  = ["CAPABILITY_IAM"]
  tags          = { cloudtrain = var.name }
  parameters = {
    BucketName        = var.bucket
    RepositoryName    = var.repository
    DataArns          = join(",", flatten([for name in var.data_buckets : ["${local.s3}${name}", "${local.s3}${name}/*"]]))
    KmsKey            = var.kms_key
    Queue             = var.queue
    QueueMachines     = var.queue_machines
    Network           = var.network
    NetworkRange      = var.network_range
    SecretEndpoints   = var.secret_endpoints ? "yes" : "no"
    SourceDays        = var.source_days
    RunDays           = var.run_days
    RemoveRuns        = var.remove_runs ? "yes" : "no"
    CreateLogGroup    = var.create_log_group ? "yes" : "no"
    LogDays           = var.log_days
    RemoteDebug       = var.remote_debug ? "yes" : "no"
    GitHubSubject     = var.github_subject
    GitHubProviderArn = var.github_provider
    Doctor            = var.doctor ? "yes" : "no"
    MaxRuntimeSeconds = var.max_runtime_seconds
    InstanceTypes     = join(",", var.instance_types)
    RequiredTags      = join(",", var.required_tags)
    MonthlyBudget     = var.budget
    AlarmEmail        = var.alarm_email
    ContainersAccount = var.containers_account
  }
}

data "aws_partition" "here" {}

locals {
  s3 = "arn:${data.aws_partition.here.partition}:s3:::"
}
