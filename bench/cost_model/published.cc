#include "bench/cost_model/published.h"

#include "common/spec/validate.h"

namespace milepost {
namespace {

constexpr auto kNone = v1::RECOMPUTE_NONE;
constexpr auto kSelective = v1::RECOMPUTE_SELECTIVE;
constexpr auto kFull = v1::RECOMPUTE_FULL;
constexpr auto kBf16 = v1::PRECISION_BF16;
constexpr auto kFp8 = v1::PRECISION_FP8;

constexpr Shape kMpt760m = {"MPT 760M", false, 24, 1536, 12, 0, 0, 50368};
constexpr Shape kMpt1b = {"MPT 1B", false, 24, 2048, 16, 0, 0, 50368};
constexpr Shape kMpt3b = {"MPT 3B", false, 32, 2560, 20, 0, 0, 50368};
constexpr Shape kMpt7b = {"MPT 7B", false, 32, 4096, 32, 0, 0, 50368};
constexpr Shape kMpt13b = {"MPT 13B", false, 40, 5120, 40, 0, 0, 50368};
constexpr Shape kMpt30b = {"MPT 30B", false, 48, 7168, 56, 0, 0, 50368};
constexpr Shape kMpt70b = {"MPT 70B", false, 80, 8192, 64, 0, 0, 50368};
constexpr Shape kLlama2_7b = {"Llama 2 7B", true, 32, 4096, 32, 32, 11008, 32000};
constexpr Shape kLlama2_13b = {"Llama 2 13B", true, 40, 5120, 40, 40, 13824, 32000};
constexpr Shape kLlama2_70b = {"Llama 2 70B", true, 80, 8192, 64, 8, 28672, 32000};
constexpr Shape kLlama3_8b = {"Llama 3 8B", true, 32, 4096, 32, 8, 14336, 128256};
constexpr Shape kLlama3_70b = {"Llama 3 70B", true, 80, 8192, 64, 8, 28672, 128256};
constexpr Shape kLlama3_405b = {"Llama 3.1 405B", true, 126, 16384, 128, 8, 53248, 128256};
constexpr Shape kGpt2_1558m = {"GPT-2 1558M", false, 48, 1600, 25, 0, 0, 50304};
constexpr Shape kGpt2_124m = {"GPT-2 124M", false, 12, 768, 12, 0, 0, 50304};
constexpr Shape kGpt3_5b = {"GPT-3 5B", false, 24, 4096, 32, 0, 0, 51200};
constexpr Shape kGpt22b = {"GPT 22B", false, 48, 6144, 64, 0, 0, 51200};
constexpr Shape kGpt175b = {"GPT 175B", false, 96, 12288, 96, 0, 0, 51200};
constexpr Shape kGpt530b = {"GPT 530B", false, 105, 20480, 128, 0, 0, 51200};
constexpr Shape kGpt1t = {"GPT 1T", false, 128, 25600, 160, 0, 0, 51200};
constexpr Shape kMegaScale175b = {"GPT 175B, 64k", false, 96, 12288, 128, 0, 0, 64000};
constexpr Shape kLlama8b20 = {"8B, 20 layers", true, 20, 4096, 32, 8, 14336, 128256};
constexpr Shape kLlama8b10 = {"8B, 10 layers", true, 10, 4096, 32, 8, 14336, 128256};
constexpr Shape kLlama1b = {"Llama 1B", true, 16, 2048, 32, 8, 8192, 128256};

constexpr char kFoundry[] =
    "github.com/mosaicml/llm-foundry scripts/train/benchmarking/README.md, 061f2c7c";
constexpr char kTitan[] = "github.com/pytorch/torchtitan docs/performance.md, 04133643";
constexpr char kTitanH100[] = "github.com/pytorch/torchtitan benchmarks/llama3_h100_202412";
constexpr char kFms[] = "github.com/foundation-model-stack/fms-fsdp README.md";
constexpr char kBridge[] =
    "docs.nvidia.com/nemo/megatron-bridge performance summary, 25.11 container";
constexpr char kNemo[] = "docs.nvidia.com/nemo-framework user guide 24.12, performance benchmarks";
constexpr char kLlmc[] = "github.com/karpathy/llm.c discussion 677";
constexpr char kHere[] = "bench/results/gpu_step_vs_torch_*.json";
// These and Llama 3's are quoted without the papers at hand. The times of these two agree with the
// MFU that they give.
constexpr char kKorthikanti[] = "Korthikanti et al. 2022, arXiv 2205.05198, table 5";
constexpr char kMegaScale[] = "Jiang et al. 2024, MegaScale, arXiv 2402.15627, table 2";
constexpr char kLlama3[] = "Grattafiori et al. 2024, The Llama 3 Herd of Models, table 4";

constexpr char k2022[] = "fp16, with kernels of 2022";
constexpr char kInMegaScale[] = "the baseline of that paper";
constexpr char kNoSchedule[] =
    "by their TFLOP/s, 6 for each parameter and token; how stages are interleaved is not given";
constexpr char kEager[] =
    "PyTorch without compilation: norms and activations as kernels of their own";
// For each TFLOP/s: what a step of 405B does in a second.
constexpr double kTokensOf405b = 1e12 / (6 * 405.9e9);
constexpr char kPowerLimit[] = "GPUs held at 500 of 700 W";

const PublishedRun kPublishedRuns[] = {
    // 80 GB A100s, 8 to a host, 1600 Gb/s between hosts.
    {"llm-foundry", kFoundry, "a100", 1600, &kMpt1b, 2048, 8, 1, 3, 0, kNone, kBf16, false, 14, 4,
     20513, kEager},
    {"llm-foundry", kFoundry, "a100", 1600, &kMpt3b, 2048, 8, 1, 3, 0, kNone, kBf16, false, 10, 2,
     10811, kEager},
    {"llm-foundry", kFoundry, "a100", 1600, &kMpt7b, 2048, 8, 1, 3, 0, kNone, kBf16, false, 6, 2,
     4641, kEager},
    {"llm-foundry", kFoundry, "a100", 1600, &kMpt7b, 8192, 8, 1, 3, 0, kFull, kBf16, false, 8, 2,
     3206, kEager},
    {"llm-foundry", kFoundry, "a100", 1600, &kMpt13b, 2048, 8, 1, 3, 0, kNone, kBf16, false, 2, 3,
     2262, kEager},
    {"llm-foundry", kFoundry, "a100", 1600, &kMpt30b, 2048, 8, 1, 3, 0, kFull, kBf16, false, 3, 21,
     916, kEager},
    {"llm-foundry", kFoundry, "a100", 1600, &kMpt70b, 2048, 64, 1, 3, 0, kFull, kBf16, true, 8, 4,
     410, kEager},
    {"torchtitan", kTitan, "a100", 0, &kLlama2_13b, 4096, 64, 1, 3, 0, kNone, kBf16, false, 2, 1,
     2162, "with torch.compile; the network is not given"},
    {"torchtitan", kTitan, "a100", 0, &kLlama2_70b, 4096, 64, 1, 3, 0, kFull, kBf16, false, 2, 1,
     353, "with torch.compile; the network is not given"},
    {"torchtitan", kTitan, "a100", 0, &kLlama3_8b, 8192, 64, 1, 3, 0, kSelective, kBf16, false, 1,
     1, 2973, "computes every other product again; the network is not given"},
    {"torchtitan", kTitan, "a100", 0, &kLlama3_70b, 8192, 64, 1, 3, 0, kFull, kBf16, false, 1, 1,
     331, "with torch.compile; the network is not given"},
    {"fms-fsdp", kFms, "a100", 400, &kLlama2_7b, 4096, 128, 1, 3, 8, kNone, kBf16, true, 2, 1, 3760,
     kEager},
    {"fms-fsdp", kFms, "a100", 400, &kLlama2_13b, 4096, 128, 1, 3, 8, kNone, kBf16, true, 1, 1,
     1700, kEager},
    {"fms-fsdp", kFms, "a100", 400, &kLlama2_70b, 4096, 128, 1, 3, 0, kFull, kBf16, true, 6, 1, 380,
     kEager},
    {"Megatron-LM", kKorthikanti, "a100", 0, &kGpt22b, 2048, 8, 8, 1, 0, kFull, kBf16, false, 4, 1,
     4 * 2048 / 1.42 / 8, k2022},
    {"Megatron-LM", kKorthikanti, "a100", 0, &kGpt22b, 2048, 8, 8, 1, 0, kSelective, kBf16, false,
     4, 1, 4 * 2048 / 1.10 / 8, k2022},
    {"Megatron-LM",
     kKorthikanti,
     "a100",
     1600,
     &kGpt175b,
     2048,
     64,
     8,
     1,
     0,
     kFull,
     kBf16,
     false,
     1,
     64,
     64 * 2048 / 18.13 / 64,
     k2022,
     1,
     8,
     3},
    {"Megatron-LM",
     kKorthikanti,
     "a100",
     1600,
     &kGpt175b,
     2048,
     64,
     8,
     1,
     0,
     kSelective,
     kBf16,
     false,
     1,
     64,
     64 * 2048 / 13.75 / 64,
     k2022,
     1,
     8,
     3},
    {"Megatron-LM",
     kKorthikanti,
     "a100",
     1600,
     &kGpt530b,
     2048,
     280,
     8,
     1,
     0,
     kFull,
     kBf16,
     false,
     1,
     280,
     280 * 2048 / 49.05 / 280,
     k2022,
     1,
     35,
     3},
    {"Megatron-LM",
     kKorthikanti,
     "a100",
     1600,
     &kGpt530b,
     2048,
     280,
     8,
     1,
     0,
     kSelective,
     kBf16,
     false,
     1,
     280,
     280 * 2048 / 37.83 / 280,
     k2022,
     1,
     35,
     3},
    {"Megatron-LM", kKorthikanti, "a100", 1600, &kGpt1t, 2048, 512, 8, 1, 0, kFull, kBf16, false, 1,
     512, 512 * 2048 / 94.42 / 512, k2022, 1, 64},
    {"Megatron-LM", kKorthikanti, "a100", 1600, &kGpt1t, 2048, 512, 8, 1, 0, kSelective, kBf16,
     false, 1, 512, 512 * 2048 / 71.49 / 512, k2022, 1, 64},
    {"Megatron-LM",
     kMegaScale,
     "a100",
     1600,
     &kMegaScale175b,
     2048,
     256,
     8,
     1,
     0,
     kSelective,
     kBf16,
     false,
     1,
     192,
     768 * 2048 / 40.0 / 256,
     kInMegaScale,
     1,
     8,
     6},
    {"Megatron-LM",
     kMegaScale,
     "a100",
     1600,
     &kMegaScale175b,
     2048,
     1024,
     8,
     1,
     0,
     kSelective,
     kBf16,
     false,
     1,
     48,
     768 * 2048 / 11.9 / 1024,
     kInMegaScale,
     1,
     8,
     6},
    {"Megatron-LM",
     kMegaScale,
     "a100",
     1600,
     &kMegaScale175b,
     2048,
     12288,
     8,
     1,
     0,
     kSelective,
     kBf16,
     false,
     1,
     32,
     6144 * 2048 / 8.57 / 12288,
     kInMegaScale,
     1,
     8,
     6},
    // 80 GB H100s.
    {"llm-foundry", kFoundry, "h100", 0, &kMpt760m, 2048, 16, 1, 3, 0, kNone, kBf16, false, 24, 1,
     68551, kEager},
    {"llm-foundry", kFoundry, "h100", 0, &kMpt1b, 2048, 64, 1, 3, 0, kNone, kBf16, false, 20, 1,
     44402, kEager},
    {"llm-foundry", kFoundry, "h100", 0, &kMpt3b, 2048, 16, 1, 3, 0, kNone, kBf16, false, 10, 3,
     24142, kEager},
    {"llm-foundry", kFoundry, "h100", 0, &kMpt7b, 2048, 8, 1, 3, 0, kNone, kBf16, false, 6, 1,
     10643, kEager},
    {"llm-foundry", kFoundry, "h100", 0, &kMpt13b, 2048, 64, 1, 3, 0, kNone, kBf16, false, 2, 1,
     4800, kEager},
    {"llm-foundry", kFoundry, "h100", 0, &kMpt30b, 2048, 32, 1, 3, 0, kFull, kBf16, false, 14, 3,
     2308, kEager},
    {"llm-foundry", kFoundry, "h100", 0, &kMpt70b, 2048, 64, 1, 3, 0, kFull, kBf16, false, 8, 4,
     1039, kEager},
    {"fms-fsdp", kFms, "h100", 800, &kLlama2_7b, 4096, 96, 1, 3, 8, kNone, kBf16, true, 2, 1, 7500,
     kEager},
    {"torchtitan", kTitanH100, "h100", 0, &kLlama3_8b, 8192, 8, 1, 3, 0, kSelective, kBf16, false,
     2, 1, 5762, kPowerLimit, 2.4 / 3.35},
    {"torchtitan", kTitanH100, "h100", 0, &kLlama3_8b, 8192, 8, 1, 3, 0, kSelective, kBf16, false,
     2, 1, 6667, kPowerLimit, 2.4 / 3.35},
    {"torchtitan", kTitanH100, "h100", 0, &kLlama3_8b, 8192, 8, 1, 3, 0, kSelective, kFp8, false, 2,
     1, 8532, kPowerLimit, 2.4 / 3.35},
    {"torchtitan", "github.com/pytorch/torchtitan docs/performance.md of 2024-10", "h100", 0,
     &kLlama3_405b, 8192, 128, 8, 3, 0, kFull, kBf16, false, 2, 1, 109,
     "94 GB; divides sequences too, but no collective runs beside computation"},
    {"Llama 3", kLlama3, "h100", 3200, &kLlama3_405b,       8192,        8192, 8,  1, 0, kNone,
     kBf16,     false,   1,      32,   kTokensOf405b * 430, kNoSchedule, 1,    16, 2},
    {"Llama 3", kLlama3, "h100", 3200, &kLlama3_405b,       8192,        16384, 8,  1, 0, kNone,
     kBf16,     false,   1,      16,   kTokensOf405b * 400, kNoSchedule, 1,     16, 2},
    {"llm.c", kLlmc, "h100", 0, &kGpt2_1558m, 1024, 8, 1, 1, 0, kNone, kBf16, true, 16, 8, 47750,
     "47,000 to 48,500 were reported"},
    {"Megatron-Bridge", kBridge, "h100", 0, &kLlama3_8b, 8192, 8, 1, 3, 0, kSelective, kFp8, true,
     1, 16, 14451, "keeps parameters and gathers in 8 bits"},
    {"NeMo", kNemo, "h100", 0, &kLlama2_7b, 4096, 8, 1, 1, 0, kNone, kFp8, true, 1, 16, 16934, ""},
    {"NeMo", kNemo, "h100", 0, &kGpt3_5b, 2048, 64, 1, 1, 0, kNone, kFp8, true, 4, 8, 23406, ""},
    {"Megatron-Bridge", kBridge, "b200", 0, &kLlama3_8b, 8192, 8, 1, 1, 0, kNone, kFp8, true, 2, 8,
     30624, ""}};

const PublishedRun kRunsHere[] = {{"Milepost", kHere, "h200", 0, &kGpt2_124m, 1024, 1, 1, 0, 0,
                                   kNone, kBf16, false, 32, 1, 580656, ""},
                                  {"Milepost", kHere, "h200", 0, &kGpt2_1558m, 1024, 1, 1, 0, 0,
                                   kSelective, kBf16, false, 8, 1, 47713, ""},
                                  {"Milepost", kHere, "h200", 0, &kLlama1b, 4096, 1, 1, 0, 0, kNone,
                                   kBf16, false, 4, 1, 65319, ""},
                                  {"Milepost", kHere, "h200", 0, &kLlama8b20, 8192, 1, 1, 0, 0,
                                   kNone, kBf16, false, 1, 1, 16306, ""},
                                  {"Milepost", kHere, "h100", 0, &kGpt2_124m, 1024, 1, 1, 0, 0,
                                   kNone, kBf16, false, 32, 1, 556678, ""},
                                  {"Milepost", kHere, "h100", 0, &kGpt2_1558m, 1024, 1, 1, 0, 0,
                                   kSelective, kBf16, false, 8, 1, 45295, ""},
                                  {"Milepost", kHere, "h100", 0, &kLlama1b, 4096, 1, 1, 0, 0, kNone,
                                   kBf16, false, 4, 1, 63433, ""},
                                  {"Milepost", kHere, "h100", 0, &kLlama8b10, 8192, 1, 1, 0, 0,
                                   kNone, kBf16, false, 1, 1, 28763, ""},
                                  {"Milepost", kHere, "h100", 0, &kLlama8b10, 8192, 1, 1, 0, 0,
                                   kNone, kFp8, false, 1, 1, 35929, ""}};

}  // namespace

absl::Span<const PublishedRun> PublishedRuns() { return kPublishedRuns; }

absl::Span<const PublishedRun> RunsHere() { return kRunsHere; }

v1::JobSpec SpecOf(const PublishedRun& run) {
  v1::JobSpec spec;
  const Shape& shape = *run.shape;
  if (shape.llama) {
    v1::LlamaSpec* llama = spec.mutable_model()->mutable_llama();
    llama->set_layers(shape.layers);
    llama->set_width(shape.width);
    llama->set_heads(shape.heads);
    llama->set_kv_heads(shape.kv_heads);
    llama->set_hidden(shape.hidden);
    llama->set_context(run.sequence);
    llama->set_vocabulary(shape.vocabulary);
  } else {
    v1::Gpt2Spec* gpt2 = spec.mutable_model()->mutable_gpt2();
    gpt2->set_layers(shape.layers);
    gpt2->set_width(shape.width);
    gpt2->set_heads(shape.heads);
    gpt2->set_context(run.sequence);
    gpt2->set_vocabulary(shape.vocabulary);
  }
  spec.mutable_data()->set_sequence_length(run.sequence);
  spec.mutable_resources()->set_ranks(run.ranks);
  spec.mutable_resources()->set_device(v1::DEVICE_KIND_CUDA);
  if (run.tensor > 1) spec.mutable_resources()->mutable_mesh()->set_tensor(run.tensor);
  if (run.pipeline > 1) spec.mutable_resources()->mutable_mesh()->set_pipeline(run.pipeline);
  if (run.chunks > 1) {
    v1::MeshSpec* mesh = spec.mutable_resources()->mutable_mesh();
    mesh->set_schedule(v1::PIPELINE_SCHEDULE_INTERLEAVED);
    mesh->set_chunks(run.chunks);
  }
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(1);
  train->set_precision(run.precision);
  train->set_recompute(run.recompute);
  train->mutable_zero()->set_stage(run.stage);
  train->mutable_zero()->set_group(run.group);
  train->mutable_batch()->set_micro(run.micro);
  train->mutable_batch()->set_accumulation(run.accumulation);
  if (run.bf16_reduce) train->set_grad_reduce(v1::GRAD_REDUCE_BF16);
  NormalizeJobSpec(&spec);
  return spec;
}

}  // namespace milepost
