#!/usr/bin/env python3
"""Prints, in hex, the event file that worker/trainer/tensorboard_test.cc expects.

Needs `pip install tensorboard` (made with 2.21.0). The events are tensorboard's own protobuf
messages, framed by its own record writer.
"""
import io

from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.record_writer import RecordWriter


class Sink(io.BytesIO):
    def close(self):
        pass


sink = Sink()
writer = RecordWriter(sink)
events = [
    event_pb2.Event(wall_time=1000, step=0, file_version="brain.Event:2"),
    event_pb2.Event(wall_time=1000, step=42,
                    session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START)),
    event_pb2.Event(wall_time=1001, step=42, summary=summary_pb2.Summary(
        value=[summary_pb2.Summary.Value(tag="train/loss", simple_value=0.5)])),
]
for event in events:
    writer.write(event.SerializeToString())
print(sink.getvalue().hex())
