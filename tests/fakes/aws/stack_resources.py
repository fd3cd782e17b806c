"""The resources of a stack: those that tests look at are made in moto and ECR, the others are
names.

What a service refuses is what makes a resource fail: a name that is taken, a bucket that is not
empty, a policy that is attached (the API references of S3, IAM and CloudWatch Logs).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import ClientError

from tests.fakes.aws.ecr import Ecr
from tests.fakes.aws.template import Resolver
from tests.fakes.messages import ServiceError

Properties = Mapping[str, Any]
Client = Callable[[str], Any]

PROPERTIES = {
    "AWS::KMS::Key": {"Description", "EnableKeyRotation", "KeyPolicy"},
    "AWS::S3::Bucket": {
        *("BucketEncryption", "BucketName", "LifecycleConfiguration", "OwnershipControls"),
        *("PublicAccessBlockConfiguration", "VersioningConfiguration"),
    },
    "AWS::S3::BucketPolicy": {"Bucket", "PolicyDocument"},
    "AWS::ECR::Repository": {
        *(
            "EncryptionConfiguration",
            "ImageScanningConfiguration",
            "ImageTagMutability",
            "LifecyclePolicy",
        ),
    },
    "AWS::Logs::LogGroup": {"LogGroupName", "RetentionInDays"},
    "AWS::IAM::Role": {
        *(
            "AssumeRolePolicyDocument",
            "Description",
            "ManagedPolicyArns",
            "MaxSessionDuration",
            "Policies",
            "RoleName",
        ),
    },
    "AWS::IAM::ManagedPolicy": {"Description", "ManagedPolicyName", "PolicyDocument"},
    "AWS::IAM::OIDCProvider": {"ClientIdList", "Url"},
}
"""Properties of the types that are really made; others are made without a look (CloudFormation
template reference).
"""


class ResourceFailed(Exception):
    """A service has refused to make, change or delete a resource: the reason."""


class Resources:
    """Makes and deletes the resources of one account."""

    def __init__(self, client: Client, registry: Ecr, region: str, account: str) -> None:
        self._client = client
        self._registry = registry
        self._region = region
        self._account = account

    def create(self, stack: str, name: str, kind: str, resolver: Resolver) -> str:
        """Make one; returns its physical id, and gives the resolver its attributes. ResourceFailed
        if refused.
        """
        properties = resolver.properties(name)
        unknown = properties.keys() - PROPERTIES.get(kind, properties.keys())
        if unknown:
            raise ResourceFailed(f"Encountered unsupported property {sorted(unknown)[0]}")
        identity = self._made(kind, f"{stack}-{name}-{secrets.token_hex(6).upper()}", properties)
        resolver.identities[name] = identity
        for attribute, value in self.attributes(kind, identity).items():
            resolver.attributes[name, attribute] = value
        return identity

    def update(self, name: str, kind: str, identity: str, resolver: Resolver) -> None:
        """Change one in place."""
        properties = resolver.properties(name)
        if kind in ("AWS::IAM::Role", "AWS::S3::Bucket", "AWS::S3::BucketPolicy"):
            self._refused(lambda: self._configure(kind, identity, properties))
        elif kind == "AWS::IAM::ManagedPolicy":
            arguments = {
                "PolicyDocument": json.dumps(properties["PolicyDocument"]),
                "SetAsDefault": True,
            }
            self._refused(
                lambda: self._client("iam").create_policy_version(PolicyArn=identity, **arguments)
            )

    def delete(self, kind: str, identity: str) -> None:
        """Delete one; what is gone already is passed over. ResourceFailed if refused."""
        try:
            self._delete(kind, identity)
        except ClientError as error:
            if error.response["Error"]["Code"] not in (
                "NoSuchEntity",
                "NoSuchBucket",
                "ResourceNotFoundException",
            ):
                raise ResourceFailed(_words(error)) from None
        except ServiceError as error:
            if error.code != "RepositoryNotFoundException":
                raise ResourceFailed(error.message) from None

    def _made(self, kind: str, name: str, properties: Properties) -> str:
        made = _MAKERS.get(kind)
        identity = (
            made(self, name, properties)
            if made
            else f"{kind.rpartition(':')[2].lower()}-{secrets.token_hex(4)}"
        )
        self._refused(lambda: self._configure(kind, identity, properties))
        return identity

    def _refused(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except ClientError as error:
            raise ResourceFailed(_words(error)) from None

    def _bucket(self, name: str, properties: Properties) -> str:
        name = properties.get("BucketName") or name.lower()
        if any(each["Name"] == name for each in self._client("s3").list_buckets()["Buckets"]):
            raise ResourceFailed(f"{name} already exists")
        self._client("s3").create_bucket(Bucket=name)
        return name

    def _repository(self, name: str, properties: Properties) -> str:
        self._registry.create_repository(name.lower())
        return name.lower()

    def _key(self, name: str, properties: Properties) -> str:
        arguments = {
            "Description": properties["Description"],
            "Policy": json.dumps(properties["KeyPolicy"]),
        }
        return str(self._client("kms").create_key(**arguments)["KeyMetadata"]["KeyId"])

    def _log_group(self, name: str, properties: Properties) -> str:
        name = properties["LogGroupName"]
        self._refused(lambda: self._client("logs").create_log_group(logGroupName=name))
        if "RetentionInDays" in properties:
            days = int(properties["RetentionInDays"])
            self._client("logs").put_retention_policy(logGroupName=name, retentionInDays=days)
        return str(name)

    def _role(self, name: str, properties: Properties) -> str:
        document = json.dumps(properties["AssumeRolePolicyDocument"])
        self._client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=document)
        return name

    def _policy(self, name: str, properties: Properties) -> str:
        document = json.dumps(properties["PolicyDocument"])
        made = self._client("iam").create_policy(PolicyName=name, PolicyDocument=document)
        return str(made["Policy"]["Arn"])

    def _oidc(self, name: str, properties: Properties) -> str:
        arguments = {"Url": properties["Url"], "ClientIDList": properties["ClientIdList"]}
        made = self._refused(
            lambda: self._client("iam").create_open_id_connect_provider(**arguments)
        )
        return str(made["OpenIDConnectProviderArn"])

    def _configure(self, kind: str, identity: str, properties: Properties) -> None:
        """What is set of a resource after it is there, and again when it changes.

        A bucket's policy is not: it lets nobody in without TLS, and moto would lock out everything
        on loopback.
        """
        if kind == "AWS::IAM::Role":
            for each in properties.get("Policies", []):
                document = json.dumps(each["PolicyDocument"])
                self._client("iam").put_role_policy(
                    RoleName=identity, PolicyName=each["PolicyName"], PolicyDocument=document
                )
            for arn in properties.get("ManagedPolicyArns", []):
                self._client("iam").attach_role_policy(RoleName=identity, PolicyArn=arn)
        elif kind == "AWS::S3::Bucket":
            s3 = self._client("s3")
            versioning = properties["VersioningConfiguration"]
            s3.put_bucket_versioning(Bucket=identity, VersioningConfiguration=versioning)
            blocked = properties["PublicAccessBlockConfiguration"]
            s3.put_public_access_block(Bucket=identity, PublicAccessBlockConfiguration=blocked)

    def attributes(self, kind: str, identity: str) -> dict[str, str]:
        """What Fn::GetAtt gives for a resource."""
        here = f"{self._region}:{self._account}"
        return {
            "AWS::S3::Bucket": {"Arn": f"arn:aws:s3:::{identity}"},
            "AWS::IAM::Role": {"Arn": f"arn:aws:iam::{self._account}:role/{identity}"},
            "AWS::IAM::OIDCProvider": {"Arn": identity},
            "AWS::KMS::Key": {"Arn": f"arn:aws:kms:{here}:key/{identity}"},
            "AWS::EC2::SecurityGroup": {"GroupId": identity},
        }.get(kind, {})

    def _delete(self, kind: str, identity: str) -> None:
        iam = self._client("iam")
        if kind == "AWS::IAM::Role":
            for name in iam.list_role_policies(RoleName=identity)["PolicyNames"]:
                iam.delete_role_policy(RoleName=identity, PolicyName=name)
            for each in iam.list_attached_role_policies(RoleName=identity)["AttachedPolicies"]:
                iam.detach_role_policy(RoleName=identity, PolicyArn=each["PolicyArn"])
            iam.delete_role(RoleName=identity)
        elif kind == "AWS::IAM::ManagedPolicy":
            attached = iam.list_entities_for_policy(PolicyArn=identity)
            if any(attached[each] for each in ("PolicyGroups", "PolicyUsers", "PolicyRoles")):
                raise ResourceFailed(
                    "Cannot delete a policy attached to entities. (Service: Iam, Status Code: 409)"
                )
            for each in iam.list_policy_versions(PolicyArn=identity)["Versions"]:
                if not each["IsDefaultVersion"]:
                    iam.delete_policy_version(PolicyArn=identity, VersionId=each["VersionId"])
            iam.delete_policy(PolicyArn=identity)
        elif kind == "AWS::IAM::OIDCProvider":
            iam.delete_open_id_connect_provider(OpenIDConnectProviderArn=identity)
        elif kind == "AWS::S3::Bucket":
            if self._client("s3").list_object_versions(Bucket=identity).get("Versions"):
                raise ResourceFailed(
                    "The bucket you tried to delete is not empty. You must delete all versions."
                )
            self._client("s3").delete_bucket(Bucket=identity)
        elif kind == "AWS::ECR::Repository":
            self._registry.delete_repository(identity)
        elif kind == "AWS::KMS::Key":
            self._client("kms").schedule_key_deletion(KeyId=identity, PendingWindowInDays=30)
        elif kind == "AWS::Logs::LogGroup":
            self._client("logs").delete_log_group(logGroupName=identity)


def _words(error: ClientError) -> str:
    found = error.response["Error"]
    return (
        f'Resource handler returned message: "{found["Message"]}" (HandlerErrorCode:'
        f" {found['Code']})"
    )


_MAKERS: Mapping[str, Callable[[Resources, str, Properties], str]] = {
    "AWS::S3::Bucket": Resources._bucket,
    "AWS::ECR::Repository": Resources._repository,
    "AWS::KMS::Key": Resources._key,
    "AWS::Logs::LogGroup": Resources._log_group,
    "AWS::IAM::Role": Resources._role,
    "AWS::IAM::ManagedPolicy": Resources._policy,
    "AWS::IAM::OIDCProvider": Resources._oidc,
}
