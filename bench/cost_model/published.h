// Training runs that others have published with enough detail to plan them, and runs here.
#ifndef MILEPOST_BENCH_COST_MODEL_PUBLISHED_H_
#define MILEPOST_BENCH_COST_MODEL_PUBLISHED_H_

#include <cstdint>

#include "absl/types/span.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {

struct Shape {
  const char* name;
  bool llama;  // else GPT-2
  int64_t layers;
  int64_t width;
  int64_t heads;
  int64_t kv_heads;  // Llama
  int64_t hidden;    // Llama
  int64_t vocabulary;
};

struct PublishedRun {
  const char* system;
  const char* source;
  const char* device;  // a built-in profile
  double network;      // Gb/s of a host; 0: the profile's
  const Shape* shape;
  int64_t sequence;
  int ranks;
  int tensor;
  int stage;
  int group;
  v1::Recompute recompute;
  v1::Precision precision;
  bool bf16_reduce;
  int64_t micro;
  int64_t accumulation;
  double tokens_per_second;  // of a rank
  const char* note;          // what is known to differ; empty: nothing
  double memory_part = 1;    // of the profile's bandwidth of memory: that of their GPUs
  int pipeline = 1;
  int chunks = 1;  // of a pipeline's rank: interleaved if there are several
  int context = 1;
};

absl::Span<const PublishedRun> PublishedRuns();
// One GPU, by bench/gpu_step_vs_torch: Milepost itself.
absl::Span<const PublishedRun> RunsHere();

v1::JobSpec SpecOf(const PublishedRun& run);

}  // namespace milepost

#endif  // MILEPOST_BENCH_COST_MODEL_PUBLISHED_H_
