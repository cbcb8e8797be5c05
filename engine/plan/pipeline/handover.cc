#include "engine/plan/pipeline/handover.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace milepost::plan {
namespace {

constexpr size_t kUnsent = kPassesUnsent;

size_t StreamOf(const Pass& pass) { return pass.kind == PassKind::kForward ? 0 : 1; }

// When the first `passes` are computed.
double EndOf(const std::vector<TimedPass>& timed, size_t passes) {
  return passes == 0 ? 0 : timed[passes - 1].end;
}

}  // namespace

Handover::Handover(const std::vector<StageOrder>& orders, std::vector<PassTimes> times,
                   double transfer)
    : times_(std::move(times)), transfer_(transfer), stages_(orders.size()) {
  int chunks = 1;
  for (const StageOrder& order : orders) {
    for (const Pass& pass : order.passes) chunks = std::max(chunks, pass.chunk + 1);
  }
  runs_ = chunks * static_cast<int>(orders.size());
  times_.resize(static_cast<size_t>(runs_), PassTimes{});
  for (size_t s = 0; s < orders.size(); ++s) Add(s, orders[s]);
}

int Handover::RunOf(size_t s, const Pass& pass) const {
  return pass.chunk * static_cast<int>(stages_.size()) + static_cast<int>(s);
}

bool Handover::Receives(size_t s, const Pass& pass) const {
  if (pass.kind == PassKind::kWeights) return false;
  const int run = RunOf(s, pass);
  return pass.kind == PassKind::kForward ? run > 0 : run + 1 < runs_;
}

bool Handover::Sends(size_t s, const Pass& pass) const {
  if (pass.kind == PassKind::kWeights) return false;
  const int run = RunOf(s, pass);
  return pass.kind == PassKind::kForward ? run + 1 < runs_ : run > 0;
}

void Handover::Add(size_t s, const StageOrder& order) {
  Stage& stage = stages_[s];
  stage.passes = order.passes;
  stage.received_at.resize(order.passes.size());
  stage.sent_at.resize(order.passes.size());
  for (const Pass& pass : order.passes) {
    stage.received.push_back(!Receives(s, pass));
    stage.sent.push_back(!Sends(s, pass));
  }
  size_t computed = 0;
  for (const StageStep& step : order.steps) {
    const auto pass = static_cast<size_t>(step.pass);
    if (step.kind == StageStep::kCompute) {
      computed = pass + 1;
      continue;
    }
    const bool send = step.kind == StageStep::kSend;
    const Pass& of = order.passes[pass];
    if (!(send ? Sends(s, of) : Receives(s, of))) continue;
    stage.streams[StreamOf(of)].push_back({send, pass, send ? pass + 1 : computed});
  }
}

void Handover::ReceiveWhenNeeded() {
  for (Stage& stage : stages_) {
    for (std::vector<Event>& stream : stage.streams) {
      size_t behind = stage.passes.size();  // when the next event is there
      for (auto event = stream.rbegin(); event != stream.rend(); ++event) {
        if (!event->send)
          event->computed = std::max(event->computed, std::min(event->pass, behind));
        behind = event->computed;
      }
    }
  }
}

absl::Status Handover::Run() {
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < stages_.size(); ++s) {
      while (Compute(s)) moved = true;
      for (size_t stream = 0; stream < 2; ++stream) {
        while (Transfer(s, stream)) moved = true;
      }
    }
  }
  std::vector<std::string> stuck;
  for (size_t s = 0; s < stages_.size(); ++s) {
    const Stage& stage = stages_[s];
    const bool done = stage.computed == stage.passes.size() &&
                      stage.at[0] == stage.streams[0].size() &&
                      stage.at[1] == stage.streams[1].size();
    if (done) continue;
    stuck.push_back(
        absl::StrCat("stage ", s, " stops at pass ", stage.computed, " of ", stage.passes.size()));
  }
  if (stuck.empty()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("pipeline stages wait for each other: ", absl::StrJoin(stuck, ", ")));
}

std::vector<std::vector<TimedPass>> Handover::Timeline() && {
  std::vector<std::vector<TimedPass>> timeline;
  for (Stage& stage : stages_) timeline.push_back(std::move(stage.timed));
  return timeline;
}

bool Handover::Compute(size_t s) {
  Stage& stage = stages_[s];
  const size_t i = stage.computed;
  if (i == stage.passes.size() || !stage.received[i] ||
      (i >= kUnsent && !stage.sent[i - kUnsent])) {
    return false;
  }
  const Pass& pass = stage.passes[i];
  double begin = std::max(EndOf(stage.timed, i), stage.received_at[i]);
  if (i >= kUnsent) begin = std::max(begin, stage.sent_at[i - kUnsent]);
  const PassTimes& times = times_[static_cast<size_t>(RunOf(s, pass))];
  stage.timed.push_back({pass, begin, begin + times[static_cast<size_t>(pass.kind)]});
  ++stage.computed;
  return true;
}

// The event that a stream has come to, if it could take place now.
const Handover::Event* Handover::Ready(size_t s, size_t stream) const {
  const Stage& stage = stages_[s];
  if (stage.at[stream] == stage.streams[stream].size()) return nullptr;
  const Event& event = stage.streams[stream][stage.at[stream]];
  return stage.computed >= event.computed ? &event : nullptr;
}

// From stage `s` to the next one, or to the one before: the first and the last are neighbours too.
bool Handover::Transfer(size_t s, size_t stream) {
  const size_t to = (s + (stream == 0 ? 1 : stages_.size() - 1)) % stages_.size();
  const Event* send = Ready(s, stream);
  const Event* receive = Ready(to, stream);
  if (send == nullptr || !send->send || receive == nullptr || receive->send) return false;
  Stage& sender = stages_[s];
  Stage& receiver = stages_[to];
  const Pass& sent = sender.passes[send->pass];
  const Pass& awaited = receiver.passes[receive->pass];
  const int there = RunOf(s, sent) + (stream == 0 ? 1 : -1);
  if (sent.micro_batch != awaited.micro_batch || there != RunOf(to, awaited)) return false;
  const double at = transfer_ + std::max({sender.stream_free[stream], receiver.stream_free[stream],
                                          EndOf(sender.timed, send->computed),
                                          EndOf(receiver.timed, receive->computed)});
  sender.stream_free[stream] = receiver.stream_free[stream] = at;
  sender.sent_at[send->pass] = receiver.received_at[receive->pass] = at;
  sender.sent[send->pass] = true;
  receiver.received[receive->pass] = true;
  ++sender.at[stream];
  ++receiver.at[stream];
  return true;
}

}  // namespace milepost::plan
