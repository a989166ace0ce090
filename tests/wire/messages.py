"""Hypothesis strategies that make every message of the protocol."""

from __future__ import annotations

from hypothesis import strategies as st

from lance_spark.model import Retention
from lance_spark.wire import lwp
from lance_spark.wire.lwp import Message

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
# Hypothesis makes no lone surrogates when the codec is UTF-8.
text = st.text(st.characters(codec="utf-8"), max_size=40)
data = st.binary(max_size=200)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | text,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
    ),
    max_leaves=5,
)
# Keys that no message knows.
details = st.dictionaries(text.map("x-{}".format), json_value, max_size=3)
retention = st.builds(Retention, u64, u64)


def tuples(item: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    """Make tuples of any length from a strategy."""
    return st.lists(item, max_size=5).map(tuple)


@st.composite
def extended_fetch_responses(draw: st.DrawFn) -> lwp.ExtendedFetchResponse:
    """Make responses whose offsets agree with their data."""
    content = draw(data)
    start = draw(st.integers(0, 2**64 - 1 - len(content)))
    return lwp.ExtendedFetchResponse(start, start + len(content), draw(u64), content)


topic_info = st.builds(
    lwp.TopicInfo, u32, text, u64, u64, st.none() | retention, details
)
stage = st.builds(lwp.StageContent, u32, u64, u64)
position = st.builds(lwp.TopicPosition, u32, u64)
assignment = tuples(st.builds(lwp.AssignedTopic, u32, text))
statuses = st.sampled_from(lwp.CommitStatus)
spans = tuples(st.builds(lwp.TopicSpan, u32, text, u64, u64))
strategies = st.sampled_from(lwp.AssignmentStrategy)
flags = st.integers(0, 7).map(lwp.FetchFlags)


def messages() -> st.SearchStrategy[Message]:
    """Make any message."""
    return st.one_of(
        st.builds(lwp.CreateTopic, text),
        st.builds(lwp.CreateTopicWithRetention, text, retention),
        st.builds(lwp.DeleteTopic, u32),
        st.builds(lwp.DeletePartitions, u32, u32),
        st.builds(lwp.ListTopics),
        st.builds(lwp.GetTopic, u32),
        st.builds(lwp.SetRetention, u32, retention),
        st.builds(lwp.GetClusterStatus),
        st.builds(lwp.Authenticate, text),
        st.builds(lwp.AuthenticateResponse, st.booleans(), text),
        st.builds(lwp.Fetch, u32, u64, u32, flags, u32),
        st.builds(lwp.FetchResponse, u64, u32, data),
        extended_fetch_responses(),
        st.builds(lwp.CatchingUp, u64),
        st.builds(lwp.Subscribe, u32, u64, u32, u64),
        st.builds(lwp.SubscribeAck, u64, u64),
        st.builds(lwp.Unsubscribe, u32, u64),
        st.builds(lwp.CommitOffset, u32, u64, u64),
        st.builds(lwp.CommitAck, u64, u64),
        topic_info,
        st.builds(lwp.TopicListing, tuples(topic_info)),
        st.builds(lwp.TopicDeletion, u32),
        st.builds(lwp.TopicRetention, u32, retention),
        st.builds(
            lwp.ClusterStatus,
            u64,
            st.booleans(),
            st.none() | u64,
            u64,
            u64,
            u64,
            st.booleans(),
            st.dictionaries(text, json_value, max_size=3),
            text,
            tuples(text),
            details,
        ),
        st.builds(lwp.ErrorResponse, u32, text, details),
        st.builds(lwp.Locate, u32, st.sampled_from(lwp.LocateKind), u64),
        st.builds(lwp.LocateResponse, u64, u64, u64),
        st.builds(lwp.OpenStage, text, text, u64),
        st.builds(lwp.StageOpened, u32),
        st.builds(lwp.CommitStages, text, u64, tuples(text), tuples(stage)),
        st.builds(lwp.StagesCommitted, statuses, spans),
        st.builds(lwp.AbortStages, text, u64),
        st.builds(lwp.StagesAborted, u32),
        st.builds(lwp.Wait, u64, tuples(position), u32),
        st.builds(lwp.WaitResponse, u64, tuples(position)),
        st.builds(lwp.JoinGroup, text, text, tuples(text), strategies, u32),
        st.builds(lwp.GroupJoined, u64, text, assignment),
        st.builds(lwp.GroupHeartbeat, text, text, u64),
        st.builds(lwp.GroupHeartbeatResponse, u64, assignment),
        st.builds(lwp.LeaveGroup, text, text),
        st.builds(lwp.GroupLeft),
    )
