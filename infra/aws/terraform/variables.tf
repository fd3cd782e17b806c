variable "name" {
  description = "The stack's name, and what the secrets of its jobs begin with"
  type        = string
  default     = "cloudtrain"
}

variable "bucket" {
  description = "A bucket that exists; empty: a new one"
  type        = string
  default     = ""
}

variable "repository" {
  description = "An ECR repository that exists; empty: a new one"
  type        = string
  default     = ""
}

variable "data_buckets" {
  description = "Names of other buckets that jobs may read"
  type        = list(string)
  default     = []
}

variable "kms_key" {
  description = "What encrypts storage and disks: none (AWS's own keys), new, or a key's ARN"
  type        = string
  default     = "none"
}

variable "network" {
  description = "new: private subnets for jobs; existing: jobs may use subnets of the account; none"
  type        = string
  default     = "none"
}

variable "network_range" {
  description = "Addresses of a new network"
  type        = string
  default     = "10.87.0.0/16"
}

variable "secret_endpoints" {
  description = "In a new network, ways to Secrets Manager and Parameter Store, which cost money by the hour"
  type        = bool
  default     = false
}

variable "source_days" {
  description = "Days after which archives of source are deleted"
  type        = number
  default     = 180
}

variable "run_days" {
  description = "Days after which checkpoints, models and output are deleted; 0: never"
  type        = number
  default     = 0
}

variable "remove_runs" {
  description = "Whether who submits may delete what runs left, as cloudtrain rm --remote does"
  type        = bool
  default     = false
}

variable "create_log_group" {
  description = "Create the log group of training jobs: only where no job has ever run in the region"
  type        = bool
  default     = false
}

variable "log_days" {
  description = "Days for which the log group of create_log_group keeps lines; 0: for ever"
  type        = number
  default     = 0
}

variable "remote_debug" {
  description = "Whether jobs may open a channel to Systems Manager, as aws.remote_debug needs it"
  type        = bool
  default     = false
}

variable "github_subject" {
  description = "The whole subject of the GitHub workflow that may submit"
  type        = string
  default     = ""
}

variable "github_provider" {
  description = "ARN of the account's OIDC provider for GitHub; empty: a new one"
  type        = string
  default     = ""
}

variable "doctor" {
  description = "Whether people who submit may also look at all that cloudtrain doctor asks about"
  type        = bool
  default     = true
}

variable "max_runtime_seconds" {
  description = "Seconds after which every job of those who submit must end; 0: no limit"
  type        = number
  default     = 0
}

variable "instance_types" {
  description = "Machines that those who submit may rent, such as ml.g5.*; empty: all"
  type        = list(string)
  default     = []
}

variable "required_tags" {
  description = "Tags that every job of those who submit bears, three at most"
  type        = list(string)
  default     = []
}

variable "budget" {
  description = "US dollars for SageMaker in a month; 0: none"
  type        = number
  default     = 0
}

variable "alarm_email" {
  description = "Who gets the alarm"
  type        = string
  default     = ""
}

variable "queue" {
  description = "Where jobs wait for machines: none, new, or the ARN of a queue of AWS Batch for training jobs"
  type        = string
  default     = "none"
}

variable "queue_machines" {
  description = "Machines that all jobs of a new queue have at once"
  type        = number
  default     = 8
}

variable "containers_account" {
  description = "The account of AWS that has the Deep Learning Containers of this region"
  type        = string
  default     = "763104351884"
}
