// Any sequence of messages on the streams of two workers, between what users ask for: no crash, no
// slot with two ranks, no generation that goes back, no log that has more than it may or misses a
// line. A message is built from the input's bytes or parsed from them.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/proto_time.h"
#include "coordinator/core/fake_cluster.h"
#include "coordinator/store/database.h"
#include "coordinator/store/log_store.h"
#include "tests/fuzz/scratch_dir.h"

namespace {

using namespace milepost;               // NOLINT
using namespace milepost::coordinator;  // NOLINT

constexpr const char* kWorkers[] = {"a", "b"};

std::string JobOf(FuzzedDataProvider& input) {
  return absl::StrCat("jobs/", input.ConsumeIntegralInRange(0, 4));
}

template <typename Message>
void Fill(FuzzedDataProvider& input, Message* message) {
  message->set_job(JobOf(input));
  message->set_generation(input.ConsumeIntegralInRange<int64_t>(-1, 6));
  message->set_rank(input.ConsumeIntegralInRange(-1, 3));
}

v1::RankReport Report(FuzzedDataProvider& input) {
  v1::RankReport report;
  Fill(input, &report);
  report.set_slot(input.ConsumeIntegralInRange(-1, 3));
  report.set_state(static_cast<v1::RankState>(input.ConsumeIntegralInRange(0, 8)));
  report.set_failure_class(static_cast<v1::FailureClass>(input.ConsumeIntegralInRange(0, 9)));
  report.set_peer_lost(input.ConsumeBool());
  report.set_exit_code(input.ConsumeIntegral<int8_t>());
  return report;
}

template <typename Message>
Message Parsed(FuzzedDataProvider& input) {
  const std::string bytes = input.ConsumeRandomLengthString(300);
  Message message;
  if (!message.ParseFromString(bytes)) message.Clear();
  return message;
}

v1::Hello Hello(FuzzedDataProvider& input, const std::string& id) {
  v1::Hello hello = input.ConsumeBool()
                        ? Parsed<v1::Hello>(input)
                        : FakeCluster::MakeHello(id, input.ConsumeIntegralInRange(0, 3), 1);
  hello.set_worker_id(id);  // the stream's certificate says it
  hello.set_incarnation(input.ConsumeIntegralInRange<int64_t>(0, 4));
  for (int i = input.ConsumeIntegralInRange(0, 3); i > 0; --i) *hello.add_ranks() = Report(input);
  return hello;
}

v1::RankProgress Progress(FuzzedDataProvider& input) {
  v1::RankProgress progress;
  Fill(input, &progress);
  *progress.mutable_progress() = Parsed<v1::Progress>(input);
  return progress;
}

v1::SpotNotice Notice(FuzzedDataProvider& input, absl::Time now) {
  if (input.ConsumeBool()) return Parsed<v1::SpotNotice>(input);
  v1::SpotNotice notice;
  notice.set_reason("gone soon");
  const absl::Duration left = absl::Seconds(input.ConsumeIntegralInRange(-10, 300));
  *notice.mutable_deadline() = ToProto(now + left);
  return notice;
}

v1::HealthReport Health(FuzzedDataProvider& input, const State& state, const std::string& worker) {
  v1::HealthReport report = Parsed<v1::HealthReport>(input);
  const v1::WorkerRecord* record = state.FindWorker(worker);
  // Only the check of its last exclusion counts.
  if (record != nullptr && input.ConsumeBool()) {
    *report.mutable_exclusion_time() = record->worker().exclusion().time();
  }
  return report;
}

// What the coordinator does with log batches. Each input has jobs of its own in one store.
class Logs {
 public:
  static constexpr int kJobs = 5;

  explicit Logs(Database* database)
      : logs_(database, kLimits), first_job_(std::exchange(next_job_, next_job_ + kJobs)) {}

  void Receive(FuzzedDataProvider& input) {
    const int64_t job = first_job_ + input.ConsumeIntegralInRange(0, kJobs - 1);
    std::vector<v1::LogLine> lines = Lines(input);
    const int64_t batch = static_cast<int64_t>(lines.size());
    const auto before = logs_.GetRange(job);
    MP_CHECK(logs_.Append(job, std::move(lines)).ok());
    const auto after = logs_.GetRange(job);
    MP_CHECK(after->next == before->next + static_cast<uint64_t>(batch));
    // Ranges grow by a step, or a batch, past what may be kept.
    const auto kept = static_cast<int64_t>(after->next - after->first);
    MP_CHECK(kept <= std::max(kLimits.lines_per_job + 1, batch)) << kept;
    CheckRead(job, *after);
    if (!logs_.IsOverTotal()) return;
    const bool ended = input.ConsumeBool();
    MP_CHECK(logs_
                 .TrimTotal(
                     [&](int64_t) { return ended ? absl::InfinitePast() : absl::InfiniteFuture(); })
                 .ok());
    MP_CHECK(!ended || logs_.total_bytes() <= kLimits.total_bytes) << logs_.total_bytes();
    CheckRead(job, *logs_.GetRange(job));
  }

 private:
  static constexpr LogLimits kLimits = {
      .lines_per_job = 20, .bytes_per_job = 30'000, .total_bytes = 60'000, .lines_of_running = 5};

  static std::vector<v1::LogLine> Lines(FuzzedDataProvider& input) {
    v1::LogBatch batch = Parsed<v1::LogBatch>(input);
    for (int i = input.ConsumeIntegralInRange(0, 30); i > 0; --i) {
      v1::LogLine* line = batch.add_lines();
      line->set_rank(i);
      const int letters = input.ConsumeIntegralInRange(0, 2 * LogStore::kMaxLineBytes);
      line->mutable_text()->append(i % 2, 'x');
      for (int k = 0; k < letters; k += 2) line->mutable_text()->append("\xc3\xa9");
    }
    return {batch.lines().begin(), batch.lines().end()};
  }
  // Just the lines of the range are there, in order.
  void CheckRead(int64_t job, const LogStore::Range& range) {
    const auto lines = logs_.Read(job, 0, 1000);
    MP_CHECK(lines.ok()) << lines.status();
    MP_CHECK(lines->size() == range.next - range.first) << lines->size();
    for (size_t i = 0; i < lines->size(); ++i) {
      MP_CHECK((*lines)[i].sequence() == range.first + i);
      MP_CHECK((*lines)[i].text().size() <= LogStore::kMaxLineBytes);
    }
  }

  static inline int64_t next_job_ = 1;

  LogStore logs_;
  const int64_t first_job_;
};

Event OfWorker(FuzzedDataProvider& input, const FakeCluster& cluster, const std::string& id) {
  const std::string worker = "workers/" + id;
  switch (input.ConsumeIntegralInRange(0, 8)) {
    case 0:
      return WorkerHello{Hello(input, id)};
    case 1:
      return WorkerStreamLost{worker};
    case 2:
      return WorkerLeaving{worker, input.ConsumeRandomLengthString(20)};
    case 3:
      return WorkerHeartbeat{worker, {Parsed<v1::DeviceFacts>(input)}};
    case 4:
      return RankProgressed{worker, Progress(input)};
    case 5:
      return SpotNoticed{worker, Notice(input, cluster.now)};
    case 6:
      return HealthReported{worker, Health(input, cluster.state, worker)};
    default:
      return RankReported{worker,
                          input.ConsumeBool() ? Report(input) : Parsed<v1::RankReport>(input)};
  }
}

Event OfUser(FuzzedDataProvider& input) {
  switch (input.ConsumeIntegralInRange(0, 7)) {
    case 0:
      return JobCancelled{JobOf(input)};
    case 1:
      return JobSuspended{JobOf(input)};
    case 2:
      return JobResumed{JobOf(input), input.ConsumeRandomLengthString(4),
                        input.ConsumeIntegral<int64_t>()};
    case 3:
      return CheckpointsChanged{JobOf(input), "checkpoints/1",
                                input.ConsumeIntegralInRange<int64_t>(-1, 100)};
    case 4:
      return CoordinatorRestarted{};
    case 5:
      return JobUpdated{JobOf(input), "", Parsed<v1::SchedulingSpec>(input)};
    case 6:
      return WorkersGone{};
    default:
      return JobSubmitted{.request_id = input.ConsumeRandomLengthString(4),
                          .spec = FakeCluster::Spec(input.ConsumeIntegralInRange(1, 4))};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ScratchDir dir;
  static const std::unique_ptr<Database> database = *Database::Open(dir.path());
  FuzzedDataProvider input(data, size);
  FakeCluster cluster;
  Logs logs(database.get());
  while (input.remaining_bytes() > 0) {
    const int kind = input.ConsumeIntegralInRange(0, 10);
    if (kind < 6) {
      cluster.Do(OfWorker(input, cluster, kWorkers[kind % 2]));
    } else if (kind < 9) {
      cluster.Do(OfUser(input));
    } else if (kind == 10) {
      logs.Receive(input);
    } else {
      cluster.Advance(absl::Milliseconds(input.ConsumeIntegral<uint16_t>()));
    }
    MP_CHECK(cluster.violation.empty()) << cluster.violation;
    if (cluster.state.jobs().size() > 16) break;
  }
  return 0;
}
