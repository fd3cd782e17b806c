# Outputs of the stack; null for what is not created. `cloudtrain infra settings` writes them to cloudtrain.toml.
locals {
  outputs = aws_cloudformation_stack.cloudtrain.outputs
}

output "region" {
  value = lookup(local.outputs, "Region", null)
}

output "role" {
  value = lookup(local.outputs, "Role", null)
}

output "bucket" {
  value = lookup(local.outputs, "Bucket", null)
}

output "repository" {
  value = lookup(local.outputs, "Repository", null)
}

output "subnets" {
  value = try(split(",", local.outputs["Subnets"]), null)
}

output "security_groups" {
  value = try(split(",", local.outputs["SecurityGroups"]), null)
}

output "kms_key" {
  value = lookup(local.outputs, "KmsKey", null)
}

output "queue" {
  value = lookup(local.outputs, "Queue", null)
}

output "submitter_policy" {
  value = lookup(local.outputs, "SubmitterPolicy", null)
}

output "github_role" {
  value = lookup(local.outputs, "GitHubRole", null)
}
