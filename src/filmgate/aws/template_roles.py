"""The roles of the CloudFormation template: their policies, and who may assume them."""

from collections.abc import Sequence
from dataclasses import dataclass

from filmgate.aws.deployment import PROCESSES, Deployment, Role, TenantScope
from filmgate.aws.policies import region_policy, role_policy
from filmgate.aws.statements import Document, policy_document, principal_statement

AUDIENCE = "sts.amazonaws.com"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The EKS cluster, and the Helm release whose ServiceAccounts assume the roles."""

    name: str
    oidc_issuer: str  # without https://; empty: Pod Identity only
    namespace: str = "filmgate"
    release: str = "filmgate"

    def service_account(self, role: Role, tenant: str = "") -> str:
        """The ServiceAccount that the chart creates for a role, or for a tenant's dedicated workers."""
        return f"{self.release}-{role}-{tenant}" if tenant else f"{self.release}-{role}"


def role_resources(
    deployment: Deployment, cluster: Cluster, provider_region: str, dedicated: Sequence[str] = ()
) -> Document:
    """One role for each process and one for operators; Pod Identity associations for the processes.

    The dedicated workers of a tenant have a role without access to other tenants.
    """
    resources: Document = {}
    for role in PROCESSES:
        regions = [deployment.region]
        if role is Role.MANAGED and provider_region:
            regions.append(provider_region)
        trust = process_trust(deployment, cluster, role)
        name = f"{role.title()}Role"
        resources[name] = _role(TenantScope(deployment), role, trust, regions)
        account = cluster.service_account(role)
        resources[f"{role.title()}PodIdentity"] = _pod_identity(cluster, account, name)
    for tenant in dedicated:
        trust = process_trust(deployment, cluster, Role.WORKER, tenant)
        name = dedicated_role(tenant)
        resources[name] = _role(TenantScope(deployment, tenant), Role.WORKER, trust, [deployment.region])
        account = cluster.service_account(Role.WORKER, tenant)
        resources[f"{name}PodIdentity"] = _pod_identity(cluster, account, name)
    trust = _operator_trust(deployment)
    resources["OperatorRole"] = _role(TenantScope(deployment), Role.OPERATOR, trust, [deployment.region])
    return resources


def dedicated_role(tenant: str) -> str:
    """The logical id of the role of a tenant's dedicated workers."""
    return f"WorkerRole{logical(tenant)}"


def logical(name: str) -> str:
    """A name as a logical id, which has letters and digits only; distinct names stay distinct."""
    return "".join(letter if letter.isalnum() else f"{ord(letter):02X}x" for letter in name)


def _pod_identity(cluster: Cluster, service_account: str, role: str) -> Document:
    properties = {
        "ClusterName": cluster.name,
        "Namespace": cluster.namespace,
        "ServiceAccount": service_account,
        "RoleArn": {"Fn::GetAtt": [role, "Arn"]},
        # They are transitive: a session of a tenant may have no tag but the tenant.
        "DisableSessionTags": True,
    }
    return {"Type": "AWS::EKS::PodIdentityAssociation", "Properties": properties}


def _role(scope: TenantScope, role: Role, trust: Document, regions: list[str]) -> Document:
    policies = [
        {"PolicyName": "filmgate", "PolicyDocument": role_policy(role, scope)},
        {"PolicyName": "regions", "PolicyDocument": region_policy(regions)},
    ]
    properties = {
        "RoleName": f"filmgate-{role}" if scope.tenant == "*" else f"filmgate-{role}-{scope.tenant}",
        "AssumeRolePolicyDocument": trust,
        "Policies": policies,
        "MaxSessionDuration": 3600,
    }
    return {"Type": "AWS::IAM::Role", "Properties": properties}


def process_trust(deployment: Deployment, cluster: Cluster, role: Role, tenant: str = "") -> Document:
    """Only the ServiceAccount of the role, in its namespace of this cluster."""
    partition, account = deployment.partition, deployment.account
    cluster_arn = f"arn:{partition}:eks:{deployment.region}:{account}:cluster/{cluster.name}"
    statements = [
        principal_statement(
            "Allow",
            "PodIdentity",
            {"Service": "pods.eks.amazonaws.com"},
            ["sts:AssumeRole", "sts:TagSession"],
            when={
                "StringEquals": {"aws:SourceAccount": account},
                "ArnEquals": {"aws:SourceArn": cluster_arn},
            },
        )
    ]
    if cluster.oidc_issuer:
        subject = f"system:serviceaccount:{cluster.namespace}:{cluster.service_account(role, tenant)}"
        provider = f"arn:{partition}:iam::{account}:oidc-provider/{cluster.oidc_issuer}"
        equal = {f"{cluster.oidc_issuer}:aud": AUDIENCE, f"{cluster.oidc_issuer}:sub": subject}
        statements.append(
            principal_statement(
                "Allow",
                "ServiceAccountToken",
                {"Federated": provider},
                "sts:AssumeRoleWithWebIdentity",
                when={"StringEquals": equal},
            )
        )
    return policy_document(statements)


def _operator_trust(deployment: Deployment) -> Document:
    """People of the account, with a second factor."""
    statement = principal_statement(
        "Allow",
        "PeopleWithSecondFactor",
        {"AWS": deployment.root_arn},
        "sts:AssumeRole",
        when={"Bool": {"aws:MultiFactorAuthPresent": "true"}},
    )
    return policy_document([statement])
