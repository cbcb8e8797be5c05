// Training steps of a GPT-2, a Llama, a BERT or a ResNet on this machine, one rank, with where the
// time goes. Prints one line of JSON; torch_step.py is its peer, step_vs_torch runs both.
//
//   build/release/bench/step --layers 12 --width 768 --heads 12 --vocabulary 50257
//       --context 512 --batch 2
//
// The floor is the step's matrix products (attention's included) at the rate of one large oneDNN
// product of the same precision, measured between the steps.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/step_model.h"
#include "common/status_macros.h"
#include "engine/comm/in_process.h"
#include "engine/dtype/half.h"
#include "engine/kernels/cpu/matmul.h"

namespace milepost::bench {
namespace {

// FLOP/s of C[n,n] = A[n,n] B[n,n], plain or with packed weights, whichever is faster here.
class Floor {
 public:
  explicit Floor(bool rounds) {
    const DType type = rounds ? DType::kBf16 : DType::kF32;
    plain_ = {.m = kSize, .n = kSize, .k = kSize, .a = type, .b = type, .c = type};
    packed_ = plain_;
    packed_.packed_b = true;
    const auto element = ByteSize(type);
    for (auto* matrix : {&a_, &b_, &c_}) {
      matrix->resize(static_cast<size_t>(kSize * kSize * element));
      // Small numbers: zeros would flatter, NaNs slow down.
      for (int64_t i = 0; i < kSize * kSize; ++i) {
        const float value = static_cast<float>(i * 7919 % 201 - 100) / 1024;
        const bf16 half = ToBf16(value);
        std::memcpy(matrix->data() + i * element,
                    rounds ? static_cast<const void*>(&half) : static_cast<const void*>(&value),
                    static_cast<size_t>(element));
      }
    }
  }

  absl::Status Prepare() {
    MP_ASSIGN_OR_RETURN(const size_t plain, cache_.WorkspaceBytes(plain_));
    scratch_.resize(plain);
    packs_ = !absl::IsUnimplemented(cache_.PackedWeightBytes(packed_).status());
    if (!packs_) return absl::OkStatus();
    MP_ASSIGN_OR_RETURN(const size_t packed, cache_.WorkspaceBytes(packed_));
    MP_ASSIGN_OR_RETURN(const size_t weight, cache_.PackedWeightBytes(packed_));
    scratch_.resize(std::max(plain, packed));
    weight_.resize(weight);
    return cache_.PackWeight(packed_, b_.data(), weight_.data(), scratch_.data());
  }

  absl::Status Measure() {
    MP_RETURN_IF_ERROR(Time(plain_, b_.data(), &plain_rates_));
    if (!packs_) return absl::OkStatus();
    return Time(packed_, weight_.data(), &packed_rates_);
  }
  double Rate() const {
    const double plain = Median(plain_rates_);
    return packs_ ? std::max(plain, Median(packed_rates_)) : plain;
  }

 private:
  static constexpr int64_t kSize = 2944;  // rows that are no multiple of a page

  absl::Status Time(const kernels::MatmulSpec& spec, const void* b, std::vector<double>* rates) {
    const double start = MonotonicSeconds();
    MP_RETURN_IF_ERROR(cache_.Execute(spec, a_.data(), b, nullptr, c_.data(), scratch_.data()));
    rates->push_back(2.0 * kSize * kSize * kSize / (MonotonicSeconds() - start));
    return absl::OkStatus();
  }

  kernels::MatmulCache cache_;
  kernels::MatmulSpec plain_, packed_;
  bool packs_ = true;  // factors that are widened are not packed
  std::vector<char> a_, b_, c_, weight_, scratch_;
  std::vector<double> plain_rates_, packed_rates_;
};

nlohmann::ordered_json OpTable(const std::vector<runtime::OpKindTime>& before,
                               const std::vector<runtime::OpKindTime>& after, double rate,
                               double steps) {
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (size_t i = 0; i < after.size(); ++i) {
    const double seconds = (after[i].seconds - before[i].seconds) / steps;
    const double flops = (after[i].flops - before[i].flops) / steps;
    const double bytes = (after[i].bytes - before[i].bytes) / steps;
    if (seconds == 0) continue;
    table.push_back({{"op", graph::Name(after[i].kind)},
                     {"milliseconds_per_step", seconds * 1e3},
                     {"gflops", flops / seconds / 1e9},
                     {"gigabytes_per_second", bytes / seconds / 1e9},
                     {"ratio_to_floor", flops / rate / seconds}});
  }
  std::sort(table.begin(), table.end(), [](const auto& x, const auto& y) {
    return x["milliseconds_per_step"] > y["milliseconds_per_step"];
  });
  return table;
}

struct Measured {
  std::vector<double> seconds;  // of each step
  double floor_rate = 0;
  double loss = 0;
  nlohmann::ordered_json ops;
};

// Steps and large products, alternating.
absl::StatusOr<Measured> Measure(const StepFlags& flags, runtime::TrainingSession& session) {
  Floor floor(flags.precision == "bf16");
  MP_RETURN_IF_ERROR(floor.Prepare());
  const std::vector<runtime::OpKindTime> before = session.op_times();
  Measured measured;
  for (int64_t i = 0; i < flags.steps; ++i) {
    MP_ASSIGN_OR_RETURN(const runtime::StepReport report, session.Step(false));
    measured.seconds.push_back(report.seconds);
    measured.loss = report.train_loss;
    MP_RETURN_IF_ERROR(floor.Measure());
  }
  measured.floor_rate = floor.Rate();
  measured.ops =
      OpTable(before, session.op_times(), measured.floor_rate, static_cast<double>(flags.steps));
  return measured;
}

absl::Status Run(const StepFlags& flags) {
  auto group = comm::MakeInProcessGroup(1);
  MP_ASSIGN_OR_RETURN(auto session, MakeSession(flags, {.threads = flags.threads}, group[0].get()));
  MP_RETURN_IF_ERROR(session->InitializeParameters());
  for (int64_t i = 0; i < flags.warmup; ++i) MP_RETURN_IF_ERROR(session->Step(false).status());
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);  // before the floor's own matrices
  MP_ASSIGN_OR_RETURN(const Measured measured, Measure(flags, *session));
  const double step = Median(measured.seconds);
  const plan::StepPlan& plan = session->plan();
  const auto tokens = static_cast<double>(flags.batch * flags.accumulation * SampleSize(flags));
  const double floor_seconds = plan.flops_per_step / measured.floor_rate;
  const auto [least, most] = std::minmax_element(measured.seconds.begin(), measured.seconds.end());
  const nlohmann::ordered_json result = {{"precision", flags.precision},
                                         {"threads", flags.threads},
                                         {"parameters", plan.parameters},
                                         {"tokens_per_second", tokens / step},
                                         {"step_seconds_median", step},
                                         {"step_seconds_min", *least},
                                         {"step_seconds_max", *most},
                                         {"flops_per_step", plan.flops_per_step},
                                         {"floor_gflops", measured.floor_rate / 1e9},
                                         {"floor_seconds", floor_seconds},
                                         {"floor_tokens_per_second", tokens / floor_seconds},
                                         {"ratio_to_floor", floor_seconds / step},
                                         {"arena_bytes", plan.arena_bytes},
                                         {"peak_rss_bytes", usage.ru_maxrss * 1024},
                                         {"loss", measured.loss},
                                         {"ops", measured.ops}};
  std::printf("%s\n", result.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace milepost::bench

int main(int argc, char** argv) {
  milepost::bench::StepFlags flags;
  CLI::App app{"Training steps of a model on this machine"};
  milepost::bench::AddStepFlags(app, &flags);
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status status = milepost::bench::Run(flags); !status.ok()) {
    std::fprintf(stderr, "step: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
