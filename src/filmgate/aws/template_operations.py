"""The rest of the CloudFormation template: queues, alarms, image repositories, flow logs, the database."""

import json

from filmgate.aws.statements import Document

IMAGES = ("server", "worker")
_UNTAGGED_DAYS = 14
_VISIBILITY_SECONDS = 60
_MAX_RECEIVES = 5
_DAY_SECONDS = 86400


def parameters() -> Document:
    """What differs between accounts and does not appear in a policy."""
    return {
        "VpcId": {"Type": "AWS::EC2::VPC::Id", "Description": "VPC of the cluster, for flow logs"},
        "AlarmEmail": {
            "Type": "String",
            "Default": "",
            "Description": "Address that receives alarms, or empty for none",
        },
        "DatabaseInstanceClass": {
            "Type": "String",
            "Default": "",
            "Description": "Class of a PostgreSQL instance, such as db.m7g.large, or empty to bring your own",
        },
        "DatabaseSubnetGroup": {
            "Type": "String",
            "Default": "default",
            "Description": "DB subnet group of the PostgreSQL instance",
        },
        "DatabaseSecurityGroup": {
            "Type": "String",
            "Default": "",
            "Description": "Security group that admits the pods on port 5432; the VPC's default if empty",
        },
    }


def conditions() -> Document:
    """Which optional resources the parameters ask for."""
    optional = {
        "HasEmail": "AlarmEmail",
        "HasDatabase": "DatabaseInstanceClass",
        "HasDatabaseSecurityGroup": "DatabaseSecurityGroup",
    }
    return {
        name: {"Fn::Not": [{"Fn::Equals": [{"Ref": parameter}, ""]}]} for name, parameter in optional.items()
    }


def outputs() -> Document:
    """What the values of the chart and its Secret need to know."""
    found: Document = {
        f"{image.title()}Repository": {
            "Value": {"Fn::GetAtt": [f"{image.title()}Repository", "RepositoryUri"]}
        }
        for image in IMAGES
    }
    for name, attribute in {
        "DatabaseAddress": "Endpoint.Address",
        "DatabaseSecret": "MasterUserSecret.SecretArn",
    }.items():
        found[name] = {"Condition": "HasDatabase", "Value": {"Fn::GetAtt": ["Database", attribute]}}
    return found


def operation_resources(queues: tuple[str, ...]) -> Document:
    """The resources that need no policy from Filmgate."""
    resources: Document = {
        "AlarmTopic": {
            "Type": "AWS::SNS::Topic",
            "Properties": {"KmsMasterKeyId": {"Ref": "DefaultKey"}, "TopicName": "filmgate-alarms"},
        },
        "AlarmSubscription": {
            "Type": "AWS::SNS::Subscription",
            "Condition": "HasEmail",
            "Properties": {
                "TopicArn": {"Ref": "AlarmTopic"},
                "Protocol": "email",
                "Endpoint": {"Ref": "AlarmEmail"},
            },
        },
        "FlowLog": {
            "Type": "AWS::EC2::FlowLog",
            "DependsOn": ["AuditBucketPolicy"],
            "Properties": {
                "ResourceId": {"Ref": "VpcId"},
                "ResourceType": "VPC",
                "TrafficType": "ALL",
                "LogDestinationType": "s3",
                "LogDestination": {"Fn::Sub": "${AuditBucket.Arn}/flow-logs/"},
            },
        },
        "Database": _database(),
    }
    for number, name in enumerate(queue for queue in queues if "*" not in queue):
        resources |= _queue_resources(f"Queue{number}", name)
    for image in IMAGES:
        resources[f"{image.title()}Repository"] = _repository(image)
    return resources


def _database() -> Document:
    return {
        "Type": "AWS::RDS::DBInstance",
        "Condition": "HasDatabase",
        "DeletionPolicy": "Snapshot",
        "UpdateReplacePolicy": "Snapshot",
        "Properties": {
            "Engine": "postgres",
            "DBName": "filmgate",
            "DBInstanceClass": {"Ref": "DatabaseInstanceClass"},
            "DBSubnetGroupName": {"Ref": "DatabaseSubnetGroup"},
            "VPCSecurityGroups": {
                "Fn::If": [
                    "HasDatabaseSecurityGroup",
                    [{"Ref": "DatabaseSecurityGroup"}],
                    {"Ref": "AWS::NoValue"},
                ]
            },
            "AllocatedStorage": "50",
            "MasterUsername": "filmgate",
            "ManageMasterUserPassword": True,
            "MultiAZ": True,
            "StorageEncrypted": True,
            "DeletionProtection": True,
            "PubliclyAccessible": False,
            "BackupRetentionPeriod": 14,
        },
    }


def dead_letter_queue(queue: str) -> str:
    """The name of the queue that receives messages that no worker could handle."""
    return queue.removesuffix(".fifo") + "-dead.fifo"


def _queue_resources(name: str, queue: str) -> Document:
    """A FIFO queue whose messages go to a dead-letter queue, and an alarm for that one."""
    redrive = {
        "deadLetterTargetArn": {"Fn::GetAtt": [f"{name}Dead", "Arn"]},
        "maxReceiveCount": _MAX_RECEIVES,
    }
    return {
        f"{name}Dead": _queue(dead_letter_queue(queue), MessageRetentionPeriod=14 * _DAY_SECONDS),
        name: _queue(
            queue,
            VisibilityTimeout=_VISIBILITY_SECONDS,
            MessageRetentionPeriod=4 * _DAY_SECONDS,
            RedrivePolicy=redrive,
        ),
        f"{name}DeadAlarm": _alarm(
            "Wake-up messages were not handled", "ApproximateNumberOfMessagesVisible", f"{name}Dead", 0
        ),
        f"{name}AgeAlarm": _alarm(
            "Wake-up messages wait for workers", "ApproximateAgeOfOldestMessage", name, 900
        ),
    }


def _queue(queue: str, **properties: object) -> Document:
    return {
        "Type": "AWS::SQS::Queue",
        "UpdateReplacePolicy": "Delete",
        "DeletionPolicy": "Delete",
        "Properties": {"FifoQueue": True, "SqsManagedSseEnabled": True, "QueueName": queue, **properties},
    }


def _alarm(description: str, metric: str, queue: str, threshold: int) -> Document:
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "AlarmDescription": description,
            "Namespace": "AWS/SQS",
            "MetricName": metric,
            "Dimensions": [{"Name": "QueueName", "Value": {"Fn::GetAtt": [queue, "QueueName"]}}],
            "Statistic": "Maximum",
            "Period": 60,
            "EvaluationPeriods": 5,
            "Threshold": threshold,
            "ComparisonOperator": "GreaterThanThreshold",
            "TreatMissingData": "notBreaching",
            "AlarmActions": [{"Ref": "AlarmTopic"}],
            "OKActions": [{"Ref": "AlarmTopic"}],
        },
    }


def _repository(image: str) -> Document:
    expiry = {
        "rules": [
            {
                "rulePriority": 1,
                "description": "untagged images",
                "selection": {
                    "tagStatus": "untagged",
                    "countType": "sinceImagePushed",
                    "countUnit": "days",
                    "countNumber": _UNTAGGED_DAYS,
                },
                "action": {"type": "expire"},
            }
        ]
    }
    return {
        "Type": "AWS::ECR::Repository",
        "DeletionPolicy": "Retain",
        "UpdateReplacePolicy": "Retain",
        "Properties": {
            "RepositoryName": f"filmgate-{image}",
            "ImageScanningConfiguration": {"ScanOnPush": True},
            "ImageTagMutability": "IMMUTABLE",
            "EncryptionConfiguration": {"EncryptionType": "KMS"},
            "LifecyclePolicy": {"LifecyclePolicyText": json.dumps(expiry)},
        },
    }
