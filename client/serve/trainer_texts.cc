#include "client/serve/trainer_texts.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "common/status_macros.h"

namespace milepost::client {
namespace {

// How soon it is noticed that nobody waits any more, while no token comes.
constexpr absl::Duration kLook = absl::Milliseconds(500);

absl::Status TrainerHasEnded() { return absl::UnavailableError("the model has ended"); }

}  // namespace

TrainerTexts::TrainerTexts(UniqueFd in, LineReader out, int64_t most)
    : most_(most), in_(std::move(in)), out_(std::move(out)), thread_([this] { Read(); }) {}

TrainerTexts::~TrainerTexts() { thread_.join(); }

// Never waits for those who write: a trainer whose lines are not read does not read either.
void TrainerTexts::Read() {
  while (true) {
    const auto text = out_.Next();
    auto line = text.ok() ? ParseTrainerLine(*text) : text.status();
    absl::MutexLock lock(&mutex_);
    if (line.ok() && Deliver(*std::move(line))) continue;
    ended_ = true;
    return;
  }
}

// False: the line is about no text that is under way.
bool TrainerTexts::Deliver(TrainerLine line) {
  const auto found = under_way_.find(line.number);
  if (found == under_way_.end() || line.kind == TrainerLine::kModel) return false;
  const Place place = found->second;
  if (line.kind != TrainerLine::kToken) under_way_.erase(found);
  place.call->events.push_back({place.text, std::move(line)});
  return true;
}

bool TrainerTexts::HasTurn(const Call& call) const {
  return call.wants_turn && turns_.front() == &call &&
         static_cast<int64_t>(under_way_.size()) < most_;
}

bool TrainerTexts::Due(const Call& call) const {
  return ended_ || !call.events.empty() || HasTurn(call);
}

void TrainerTexts::Forget(Call* call) {
  absl::MutexLock lock(&mutex_);
  std::erase(turns_, call);
  absl::erase_if(under_way_, [&](const auto& one) { return one.second.call == call; });
}

void TrainerTexts::Forget(int64_t number) {
  absl::MutexLock lock(&mutex_);
  under_way_.erase(number);
}

absl::Status TrainerTexts::Write(absl::string_view line) {
  absl::MutexLock lock(&write_mutex_);
  return WriteLine(in_.get(), line).ok() ? absl::OkStatus() : TrainerHasEnded();
}

// The work of one call.
class TrainerTexts::Making {
 public:
  Making(TrainerTexts& trainer, absl::Span<const TextLine> texts, const TextModel::Left& left,
         const TextModel::EmitScore& emit)
      : trainer_(trainer), texts_(texts), left_(left), emit_(emit), its_(texts.size()) {}

  absl::Status Run() {
    const absl::Cleanup forget = [this] { trainer_.Forget(&call_); };
    while (begun_ < texts_.size() || ended_ < begun_) {
      if (!return_early_ && (!error_.ok() || left_())) MP_RETURN_IF_ERROR(Leave());
      if (return_early_ && ended_ == begun_) break;
      MP_ASSIGN_OR_RETURN(Due due, Await());
      if (due.turn) MP_RETURN_IF_ERROR(Begin());
      if (due.event.has_value()) MP_RETURN_IF_ERROR(Handle(*std::move(due.event)));
    }
    return error_;
  }

 private:
  struct Its {
    int64_t number = 0;
    bool stopped = false;
    bool ended = false;
  };

  struct Due {
    bool turn = false;  // to begin a text
    std::optional<Call::Event> event;
  };

  // Nothing is due: it is time to look whether somebody waits.
  absl::StatusOr<Due> Await() {
    absl::MutexLock lock(&trainer_.mutex_);
    if (begun_ < texts_.size() && !return_early_ && !call_.wants_turn) {
      call_.wants_turn = true;
      trainer_.turns_.push_back(&call_);
    }
    if (return_early_ && call_.wants_turn) {
      call_.wants_turn = false;
      std::erase(trainer_.turns_, &call_);
    }
    const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(trainer_.mutex_) {
      return trainer_.Due(call_);
    };
    if (!trainer_.mutex_.AwaitWithTimeout(absl::Condition(&due), kLook)) return Due();
    if (!call_.events.empty()) {
      Due event = {.turn = false, .event = std::move(call_.events.front())};
      call_.events.pop_front();
      return event;
    }
    if (trainer_.ended_) return TrainerHasEnded();
    call_.wants_turn = false;
    trainer_.turns_.pop_front();
    its_[begun_].number = ++trainer_.numbers_;
    trainer_.under_way_[its_[begun_].number] = {&call_, begun_};
    return Due{.turn = true, .event = std::nullopt};
  }

  // No further text is begun, and those that were are ended.
  absl::Status Leave() {
    return_early_ = true;
    for (size_t i = 0; i < begun_; ++i) MP_RETURN_IF_ERROR(Stop(its_[i]));
    return absl::OkStatus();
  }

  absl::Status Begin() {
    TextLine line = texts_[begun_];
    Its& its = its_[begun_++];
    line.number = its.number;
    if (!left_()) return trainer_.Write(FormatTextLine(line));
    its.ended = true;
    ++ended_;
    trainer_.Forget(its.number);
    return absl::OkStatus();
  }

  absl::Status Handle(Call::Event event) {
    Its& its = its_[event.text];
    if (event.line.kind == TrainerLine::kToken) {
      // Those that were made before the trainer read of the stop are let go.
      if (its.stopped || emit_(event.text, event.line.token)) return absl::OkStatus();
      return Stop(its);
    }
    its.ended = true;
    ++ended_;
    if (event.line.kind == TrainerLine::kEnd) return absl::OkStatus();
    error_.Update(absl::InvalidArgumentError(event.line.message));
    return absl::OkStatus();
  }

  absl::Status Stop(Its& its) {
    if (its.stopped || its.ended) return absl::OkStatus();
    its.stopped = true;
    return trainer_.Write(FormatStopLine(its.number));
  }

  TrainerTexts& trainer_;
  const absl::Span<const TextLine> texts_;
  const TextModel::Left& left_;
  const TextModel::EmitScore& emit_;
  std::vector<Its> its_;
  size_t begun_ = 0;
  size_t ended_ = 0;           // of those that begun
  bool return_early_ = false;  // no further one is begun
  absl::Status error_;         // the first refusal
  Call call_;
};

absl::Status TrainerTexts::Make(absl::Span<const TextLine> texts, const TextModel::Left& left,
                                const TextModel::EmitScore& emit) {
  return Making(*this, texts, left, emit).Run();
}

}  // namespace milepost::client
