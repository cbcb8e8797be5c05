#include "engine/runtime/gpu/device/piece_timer.h"

#include <algorithm>

#include "common/status_macros.h"

namespace milepost::runtime {
namespace {

constexpr size_t kComputeLine = static_cast<size_t>(plan::Stream::kCompute);

}  // namespace

void PieceTimer::Restart(bool by_op) {
  by_op_ = by_op;
  used_ = 0;
  lines_.clear();
  spans_.clear();
  joins_ = 0;
}

PieceTimer::Line& PieceTimer::LineOf(int32_t op) {
  const auto line = static_cast<size_t>(program_->ops[op].stream);
  if (lines_.size() <= line) lines_.resize(line + 1);
  return lines_[line];
}

PieceTimer::Part PieceTimer::PartOf(int32_t op) const {
  const plan::PlannedOp& planned = program_->ops[op];
  const bool communicates = planned.stream == plan::Stream::kCommunication ||
                            planned.stream == plan::Stream::kStageActivations ||
                            planned.stream == plan::Stream::kStageGradients;
  if (communicates) return Part::kCommunication;
  if (planned.stream != plan::Stream::kCompute) return Part::kOther;
  switch (planned.op.phase) {
    case graph::Phase::kForward:
      return Part::kForward;
    case graph::Phase::kUpdate:
      return Part::kUpdate;
    default:  // what is made once more is the backward's
      return Part::kBackward;
  }
}

absl::StatusOr<TimerId> PieceTimer::Stamp(StreamId stream) {
  if (used_ == timers_.size()) {
    MP_ASSIGN_OR_RETURN(const TimerId timer, device_->AddTimer());
    timers_.push_back(timer);
  }
  const TimerId timer = timers_[used_++];
  MP_RETURN_IF_ERROR(device_->Stamp(timer, stream));
  return timer;
}

absl::Status PieceTimer::Close(Line& line) {
  MP_ASSIGN_OR_RETURN(line.end, Stamp(line.stream));
  spans_.push_back(
      {.from = line.begin, .to = line.end, .part = PartOf(line.open), .op = line.open});
  line.open = kNone;
  line.adjoining = true;
  return absl::OkStatus();
}

absl::Status PieceTimer::BeforeWaits(int32_t op, StreamId stream, bool waits) {
  Line& line = LineOf(op);
  line.stream = stream;
  if (line.open != kNone && (waits || !Same(line.open, op))) MP_RETURN_IF_ERROR(Close(line));
  if (!waits) return absl::OkStatus();
  line.has_waited = &line == &lines_[kComputeLine];
  if (line.has_waited && !line.adjoining) {
    MP_ASSIGN_OR_RETURN(line.end, Stamp(stream));
  }
  line.adjoining = false;
  return absl::OkStatus();
}

absl::Status PieceTimer::BeforeOp(int32_t op, StreamId stream) {
  Line& line = LineOf(op);
  if (line.open != kNone) return absl::OkStatus();
  line.open = op;
  line.begin = line.end;
  if (!line.adjoining) {
    MP_ASSIGN_OR_RETURN(line.begin, Stamp(stream));
  }
  if (line.has_waited) {
    spans_.push_back({.from = line.end, .to = line.begin, .part = Part::kExposed});
  }
  line.has_waited = false;
  return absl::OkStatus();
}

// The compute stream then waits for the others' ends.
absl::Status PieceTimer::BeforeJoin() {
  for (Line& line : lines_) {
    if (line.open != kNone) MP_RETURN_IF_ERROR(Close(line));
  }
  for (size_t i = 0; i < lines_.size(); ++i) {
    if (i != kComputeLine && lines_[i].adjoining && lines_[kComputeLine].adjoining) {
      spans_.push_back({.from = lines_[kComputeLine].end,
                        .to = lines_[i].end,
                        .part = Part::kExposed,
                        .join = joins_});
    }
  }
  ++joins_;
  for (Line& line : lines_) line.adjoining = false;
  return absl::OkStatus();
}

absl::Status PieceTimer::Read(int64_t runs, StreamTimes* times,
                              std::vector<OpKindTime>* ops) const {
  int32_t join = kNone;
  double longest = 0;  // of the join so far
  for (const Span& span : spans_) {
    MP_ASSIGN_OR_RETURN(double seconds, device_->Elapsed(span.from, span.to));
    seconds = std::max(0.0, seconds) * static_cast<double>(runs);
    if (span.join != kNone) {
      if (span.join != join) longest = 0;
      join = span.join;
      const double before = longest;
      longest = std::max(longest, seconds);
      seconds = longest - before;
    }
    switch (span.part) {
      case Part::kForward:
        times->forward += seconds;
        break;
      case Part::kBackward:
        times->backward += seconds;
        break;
      case Part::kUpdate:
        times->update += seconds;
        break;
      case Part::kExposed:
        times->exposed += seconds;
        break;
      case Part::kCommunication:
        times->communication += seconds;
        break;
      case Part::kOther:
        break;
    }
    if (by_op_ && span.part != Part::kExposed) {
      AddOpTime(program_->ops[span.op], runs, seconds, ops);
    }
  }
  return absl::OkStatus();
}

// A stamp that the latest run has not come to tells nothing, or the time of the run before.
bool PieceTimer::IsUnderWay(const Span& span) const {
  if (span.part == Part::kExposed || !device_->Elapsed(span.from, span.from).ok()) return false;
  const absl::StatusOr<double> seconds = device_->Elapsed(span.from, span.to);
  return !seconds.ok() || *seconds < 0;
}

std::vector<int32_t> PieceTimer::UnderWay() const {
  std::vector<int32_t> ops;
  for (const Span& span : spans_) {
    if (IsUnderWay(span)) ops.push_back(span.op);
  }
  std::sort(ops.begin(), ops.end());
  return ops;
}

}  // namespace milepost::runtime
