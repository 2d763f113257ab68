"""What is finished is kept: records on disk today; the durable store of groups joins them here."""

from hermes_rl.store.holding import in_turn, only_writer
from hermes_rl.store.records import RecordWriter, group_of, read_groups, record_of, rollout_record, write_document

__all__ = [
    "RecordWriter",
    "group_of",
    "in_turn",
    "only_writer",
    "read_groups",
    "record_of",
    "rollout_record",
    "write_document",
]
