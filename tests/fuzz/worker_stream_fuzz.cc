// Any sequence of messages on the streams of two workers, between what users ask for: no crash, no
// slot with two ranks, no generation that goes back. A message is built from the input's bytes or
// parsed from them.
#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/proto_time.h"
#include "coordinator/core/fake_cluster.h"

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

Event OfWorker(FuzzedDataProvider& input, const std::string& id) {
  const std::string worker = "workers/" + id;
  switch (input.ConsumeIntegralInRange(0, 6)) {
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
    default:
      return RankReported{worker,
                          input.ConsumeBool() ? Report(input) : Parsed<v1::RankReport>(input)};
  }
}

Event OfUser(FuzzedDataProvider& input) {
  switch (input.ConsumeIntegralInRange(0, 6)) {
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
    default:
      return JobSubmitted{.request_id = input.ConsumeRandomLengthString(4),
                          .spec = FakeCluster::Spec(input.ConsumeIntegralInRange(1, 4))};
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  FakeCluster cluster;
  while (input.remaining_bytes() > 0) {
    const int kind = input.ConsumeIntegralInRange(0, 9);
    if (kind < 6) {
      cluster.Do(OfWorker(input, kWorkers[kind % 2]));
    } else if (kind < 9) {
      cluster.Do(OfUser(input));
    } else {
      cluster.Advance(absl::Milliseconds(input.ConsumeIntegral<uint16_t>()));
    }
    MP_CHECK(cluster.violation.empty()) << cluster.violation;
    if (cluster.state.jobs().size() > 16) break;
  }
  return 0;
}
