#include "common/spec/nearest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace milepost {
namespace {

constexpr size_t kLongestName = 64;

std::string Folded(absl::string_view name) {
  std::string folded = absl::AsciiStrToLower(name);
  std::replace(folded.begin(), folded.end(), '-', '_');
  return folded;
}

// Optimal string alignment: Levenshtein with swaps of neighbours.
size_t Distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

// The names of PyTorch, Hugging Face, nanoGPT, Megatron, DeepSpeed and Lightning. Of one name those
// that are fields beside it come before paths.
constexpr OtherName kOtherNames[] = {
    {"learning_rate", "lr"},
    {"lr", "train.optimizer.lr"},
    {"learning_rate", "train.optimizer.lr"},
    {"max_lr", "lr"},
    {"optim", "optimizer"},
    {"adam", "adamw"},
    {"weight_decay", "train.optimizer.weight_decay"},
    {"wd", "weight_decay"},
    {"eps", "epsilon"},
    {"warmup", "warmup_steps"},
    {"num_warmup_steps", "warmup_steps"},
    {"warmup_iters", "warmup_steps"},
    {"warmup_steps", "train.schedule.warmup_steps"},
    {"lr_scheduler", "schedule"},
    {"scheduler", "schedule"},
    {"lr_scheduler_type", "train.schedule.type"},
    {"epochs", "train.steps"},
    {"num_epochs", "train.steps"},
    {"num_train_epochs", "train.steps"},
    {"max_epochs", "train.steps"},
    {"max_steps", "steps"},
    {"num_steps", "steps"},
    {"total_steps", "steps"},
    {"max_iters", "steps"},
    {"iterations", "steps"},
    {"train_iters", "steps"},
    {"max_steps", "train.steps"},
    {"micro_batch", "micro"},
    {"micro_batch_size", "micro"},
    {"per_device_train_batch_size", "train.batch.micro"},
    {"micro_batch_size", "train.batch.micro"},
    {"micro_batch", "train.batch.micro"},
    {"batch_size", "global"},
    {"global_batch_size", "global"},
    {"global_batch", "global"},
    {"batch_size", "train.batch.global"},
    {"global_batch_size", "train.batch.global"},
    {"gradient_accumulation", "accumulation"},
    {"gradient_accumulation_steps", "accumulation"},
    {"accumulate_grad_batches", "accumulation"},
    {"gradient_accumulation_steps", "train.batch.accumulation"},
    {"max_grad_norm", "clip_norm"},
    {"grad_clip", "clip_norm"},
    {"gradient_clip_val", "clip_norm"},
    {"clip_grad", "clip_norm"},
    {"gradient_clipping", "clip_norm"},
    {"dtype", "train.precision"},
    {"torch_dtype", "train.precision"},
    {"gradient_checkpointing", "recompute"},
    {"activation_checkpointing", "recompute"},
    {"zero_stage", "stage"},
    {"zero_stage", "train.zero.stage"},
    {"eval_steps", "train.validation.every"},
    {"eval_interval", "train.validation.every"},
    {"eval_every", "train.validation.every"},
    {"save_steps", "checkpoint.every"},
    {"save_interval", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep_last"},
    {"load_best_model_at_end", "checkpoint.keep_best"},
    {"early_stopping_patience", "train.validation.patience"},
    {"resume_from_checkpoint", "checkpoint.resume_from"},
    {"pretrained", "train.init_from"},
    {"n_layer", "layers"},
    {"n_layers", "layers"},
    {"num_layers", "layers"},
    {"num_hidden_layers", "layers"},
    {"n_embd", "width"},
    {"d_model", "width"},
    {"hidden_size", "width"},
    {"embed_dim", "width"},
    {"dim", "width"},
    {"hidden_dim", "hidden"},
    {"n_head", "heads"},
    {"n_heads", "heads"},
    {"num_heads", "heads"},
    {"num_attention_heads", "heads"},
    {"num_key_value_heads", "kv_heads"},
    {"n_kv_heads", "kv_heads"},
    {"intermediate_size", "hidden"},
    {"vocab_size", "vocabulary"},
    {"n_positions", "context"},
    {"n_ctx", "context"},
    {"block_size", "context"},
    {"max_position_embeddings", "context"},
    {"rms_norm_eps", "norm_epsilon"},
    {"layer_norm_eps", "norm_epsilon"},
    {"tie_word_embeddings", "tied"},
    {"seq_len", "sequence_length"},
    {"seq_length", "sequence_length"},
    {"block_size", "sequence_length"},
    {"max_length", "sequence_length"},
    {"seq_len", "data.sequence_length"},
    {"block_size", "data.sequence_length"},
    {"dataset", "data.train"},
    {"train_file", "data.train"},
    {"eval", "validation"},
    {"gpus", "resources.ranks"},
    {"num_gpus", "resources.ranks"},
    {"world_size", "resources.ranks"},
    {"nproc_per_node", "resources.ranks"},
    {"num_processes", "resources.ranks"},
    {"gpu", "cuda"},
    {"float32", "fp32"},
    {"float", "fp32"},
    {"full", "fp32"},
    {"32", "fp32"},
    {"bfloat16", "bf16"},
    {"bf16_mixed", "bf16"},
    {"float16", "fp16"},
    {"half", "fp16"},
    {"16", "fp16"},
    {"float8", "fp8"},
    {"name_or_path", "train.init_from"},
    {"r", "rank"},
    {"lora_r", "rank"},
    {"lora_alpha", "alpha"},
    {"lora_dropout", "dropout"},
    {"target_modules", "targets"},
    {"modules_to_save", "also_train"},
    {"use_rslora", "rank_stabilized"},
    {"use_dora", "dora"},
    {"load_in_4bit", "quantize_base"},
    {"bnb_4bit_quant_type", "quantize_base"},
    {"quantization", "quantize_base"},
};

// "" when it is none of theirs. `elsewhere`: also a path.
std::string OursFor(absl::string_view typed, const std::vector<std::string>& candidates,
                    bool elsewhere) {
  const std::string folded = Folded(typed);
  std::string path;
  for (const OtherName& one : kOtherNames) {
    if (one.other != folded) continue;
    const bool is_path = one.ours.find('.') != absl::string_view::npos;
    if (is_path && elsewhere && path.empty()) path = std::string(one.ours);
    if (std::find(candidates.begin(), candidates.end(), one.ours) != candidates.end()) {
      return std::string(one.ours);
    }
  }
  return path;
}

std::string Suggest(absl::string_view typed, const std::vector<std::string>& candidates,
                    bool elsewhere) {
  std::string meant = OursFor(typed, candidates, elsewhere);
  if (meant.empty()) meant = NearestName(typed, candidates).value_or("");
  return meant.empty() ? "" : absl::StrCat("; did you mean '", meant, "'?");
}

}  // namespace

absl::Span<const OtherName> OtherNames() { return kOtherNames; }

std::optional<std::string> NearestName(absl::string_view typed,
                                       const std::vector<std::string>& candidates) {
  if (typed.empty() || typed.size() > kLongestName) return std::nullopt;
  const std::string wanted = Folded(typed);
  std::optional<std::string> best;
  size_t best_distance = kLongestName;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongestName) continue;
    const size_t distance = Distance(wanted, Folded(candidate));
    const size_t allowed = std::max<size_t>(1, std::max(wanted.size(), candidate.size()) / 3);
    if (distance > allowed || distance >= best_distance) continue;
    best = candidate;
    best_distance = distance;
  }
  return best;
}

std::string DidYouMean(absl::string_view typed, const std::vector<std::string>& candidates) {
  return Suggest(typed, candidates, /*elsewhere=*/false);
}

std::string DidYouMeanField(absl::string_view typed, const std::vector<std::string>& candidates) {
  return Suggest(typed, candidates, /*elsewhere=*/true);
}

}  // namespace milepost
