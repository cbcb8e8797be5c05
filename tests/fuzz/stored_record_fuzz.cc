// Any bytes as what the store keeps: a manifest is refused or is the one that was written; a
// manifest's tensors and chunks are refused or cover each other; and records of jobs, workers and
// queues, however little sense they make, are loaded and decided on without a crash.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/check.h"
#include "coordinator/core/decide.h"
#include "coordinator/store/coverage.h"
#include "coordinator/store/manifest.h"
#include "milepost/v1/store.pb.h"

namespace {

using namespace milepost;               // NOLINT
using namespace milepost::coordinator;  // NOLINT

void Manifest(absl::string_view bytes) {
  (void)DecodeManifest(bytes);
  v1::StoredManifest manifest;
  if (!manifest.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto decoded = DecodeManifest(EncodeManifest(manifest));
  MP_CHECK(decoded.ok()) << decoded.status();
  const auto& tensors = manifest.manifest().tensors();
  if (!CheckTensors(tensors).ok()) return;
  const std::vector<v1::StoredChunk> chunks(manifest.chunks().begin(), manifest.chunks().end());
  if (!CheckCoverage(tensors, chunks).ok()) return;
  int64_t covered = 0, wanted = 0;
  for (const v1::StoredChunk& chunk : chunks) covered += chunk.end() - chunk.begin();
  for (const v1::TensorInfo& tensor : tensors) wanted += *ElementCount(tensor);
  MP_CHECK(covered == wanted) << covered << " of " << wanted;
}

// As the coordinator does after its start.
void Records(absl::string_view bytes) {
  State state;
  v1::JobRecord job;
  if (job.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) &&
      JobNumber(job.job().name()) > 0) {
    state.PutJob(job);
  }
  v1::WorkerRecord worker;
  if (worker.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) state.PutWorker(worker);
  v1::QueueRecord queue;
  if (queue.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) state.PutQueue(queue);
  const Config config;
  absl::Time now = absl::FromUnixSeconds(1'800'000'000);
  state.Apply(Decide(state, CoordinatorRestarted{}, now, config));
  for (int i = 0; i < 3; ++i) {
    now += absl::Minutes(1);
    state.Apply(Decide(state, Tick{}, now, config));
    state.Apply(DecideSchedule(state, now, config));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.empty()) return 0;
  if (bytes[0] % 2 == 0) {
    Manifest(bytes.substr(1));
  } else {
    Records(bytes.substr(1));
  }
  return 0;
}
