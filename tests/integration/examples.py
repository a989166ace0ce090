"""A good example of every request, for tests that must not forget one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lance_spark.model import Retention
from lance_spark.wire import lwp
from lance_spark.wire.lwp import Message

WRITER, GROUP, MEMBER = "writer", "group", "member"

# Each is about the topic of this name and id, if its kind is about one at all.
EXAMPLES: Mapping[type[Message], Callable[[str, int], Message]] = {
    lwp.CreateTopic: lambda name, _: lwp.CreateTopic(name),
    lwp.DeleteTopic: lambda _, topic: lwp.DeleteTopic(topic),
    lwp.DeletePartitions: lambda _, topic: lwp.DeletePartitions(topic, 1),
    lwp.ListTopics: lambda *_: lwp.ListTopics(),
    lwp.GetTopic: lambda _, topic: lwp.GetTopic(topic),
    lwp.SetRetention: lambda _, topic: lwp.SetRetention(topic, Retention(0, 1)),
    lwp.CreateTopicWithRetention: lambda name, _: lwp.CreateTopicWithRetention(
        name, Retention(60, 0)
    ),
    lwp.GetClusterStatus: lambda *_: lwp.GetClusterStatus(),
    lwp.Authenticate: lambda *_: lwp.Authenticate("no such token"),
    lwp.Fetch: lambda _, topic: lwp.Fetch(topic, 0, 1000),
    lwp.Subscribe: lambda _, topic: lwp.Subscribe(topic, 0, 1000, 1),
    lwp.Unsubscribe: lambda _, topic: lwp.Unsubscribe(topic, 1),
    lwp.CommitOffset: lambda _, topic: lwp.CommitOffset(topic, 1, 0),
    lwp.Locate: lambda _, topic: lwp.Locate(topic, lwp.LocateKind.END),
    lwp.OpenStage: lambda name, _: lwp.OpenStage(name, WRITER, 1),
    lwp.CommitStages: lambda name, _: lwp.CommitStages(WRITER, 1, (name,), ()),
    lwp.AbortStages: lambda *_: lwp.AbortStages(WRITER, 1),
    lwp.Wait: lambda _, topic: lwp.Wait(0, (lwp.TopicPosition(topic, 0),), 100),
    lwp.JoinGroup: lambda name, _: lwp.JoinGroup(
        GROUP, "", (name,), lwp.AssignmentStrategy.RANGE, 30_000
    ),
    lwp.GroupHeartbeat: lambda *_: lwp.GroupHeartbeat(GROUP, MEMBER, 1),
    lwp.LeaveGroup: lambda *_: lwp.LeaveGroup(GROUP, MEMBER),
}
