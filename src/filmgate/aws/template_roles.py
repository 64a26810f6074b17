"""The roles of the CloudFormation template: their policies, and who may assume them."""

from dataclasses import dataclass

from filmgate.aws.deployment import Deployment, TenantScope
from filmgate.aws.policies import region_policy, role_policy
from filmgate.aws.roles import Role
from filmgate.aws.statements import Document

AUDIENCE = "sts.amazonaws.com"
_PROCESSES = (Role.API, Role.WORKER, Role.MANAGED)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The EKS cluster, and the Helm release whose ServiceAccounts assume the roles."""

    name: str
    oidc_issuer: str  # without https://; empty: Pod Identity only
    namespace: str = "filmgate"
    release: str = "filmgate"

    def service_account(self, role: Role) -> str:
        """The ServiceAccount that the chart creates for a role."""
        return f"{self.release}-{role}"


def role_resources(deployment: Deployment, cluster: Cluster, provider_region: str) -> Document:
    """One role for each process and one for operators; Pod Identity associations for the processes."""
    resources: Document = {}
    for role in _PROCESSES:
        regions = [deployment.region]
        if role is Role.MANAGED and provider_region:
            regions.append(provider_region)
        trust = process_trust(deployment, cluster, role)
        resources[f"{role.title()}Role"] = _role(deployment, role, trust, regions)
        resources[f"{role.title()}PodIdentity"] = {
            "Type": "AWS::EKS::PodIdentityAssociation",
            "Properties": {
                "ClusterName": cluster.name,
                "Namespace": cluster.namespace,
                "ServiceAccount": cluster.service_account(role),
                "RoleArn": {"Fn::GetAtt": [f"{role.title()}Role", "Arn"]},
            },
        }
    trust = _operator_trust(deployment)
    resources["OperatorRole"] = _role(deployment, Role.OPERATOR, trust, [deployment.region])
    return resources


def _role(deployment: Deployment, role: Role, trust: Document, regions: list[str]) -> Document:
    policies = [
        {"PolicyName": "filmgate", "PolicyDocument": role_policy(role, TenantScope(deployment))},
        {"PolicyName": "regions", "PolicyDocument": region_policy(regions)},
    ]
    properties = {
        "RoleName": f"filmgate-{role}",
        "AssumeRolePolicyDocument": trust,
        "Policies": policies,
        "MaxSessionDuration": 3600,
    }
    return {"Type": "AWS::IAM::Role", "Properties": properties}


def process_trust(deployment: Deployment, cluster: Cluster, role: Role) -> Document:
    """Only the ServiceAccount of the role, in its namespace of this cluster."""
    partition, account = deployment.partition, deployment.account
    cluster_arn = f"arn:{partition}:eks:{deployment.region}:{account}:cluster/{cluster.name}"
    statements: list[Document] = [
        {
            "Sid": "PodIdentity",
            "Effect": "Allow",
            "Principal": {"Service": "pods.eks.amazonaws.com"},
            "Action": ["sts:AssumeRole", "sts:TagSession"],
            "Condition": {
                "StringEquals": {"aws:SourceAccount": account},
                "ArnEquals": {"aws:SourceArn": cluster_arn},
            },
        }
    ]
    if cluster.oidc_issuer:
        subject = f"system:serviceaccount:{cluster.namespace}:{cluster.service_account(role)}"
        provider = f"arn:{partition}:iam::{account}:oidc-provider/{cluster.oidc_issuer}"
        equal = {f"{cluster.oidc_issuer}:aud": AUDIENCE, f"{cluster.oidc_issuer}:sub": subject}
        statements.append(
            {
                "Sid": "ServiceAccountToken",
                "Effect": "Allow",
                "Principal": {"Federated": provider},
                "Action": "sts:AssumeRoleWithWebIdentity",
                "Condition": {"StringEquals": equal},
            }
        )
    return {"Version": "2012-10-17", "Statement": statements}


def _operator_trust(deployment: Deployment) -> Document:
    """People of the account, with a second factor."""
    root = f"arn:{deployment.partition}:iam::{deployment.account}:root"
    statement: Document = {
        "Sid": "PeopleWithSecondFactor",
        "Effect": "Allow",
        "Principal": {"AWS": root},
        "Action": "sts:AssumeRole",
        "Condition": {"Bool": {"aws:MultiFactorAuthPresent": "true"}},
    }
    return {"Version": "2012-10-17", "Statement": [statement]}
