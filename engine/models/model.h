// Builds the forward graph of a job spec's model. Pure and thread-safe.
//
//   MP_ASSIGN_OR_RETURN(graph::Graph graph, models::BuildModel(spec.model(), options));
#ifndef MILEPOST_ENGINE_MODELS_MODEL_H_
#define MILEPOST_ENGINE_MODELS_MODEL_H_

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/graph/graph.h"
#include "engine/ops/preference/preference.h"

namespace milepost::v1 {
class ModelSpec;
}

namespace milepost::models {

inline constexpr absl::string_view kReferencePrefix = "reference.";

enum class Mode : uint8_t {
  kTraining,    // ends in the loss, with dropout; ready for ops::AddBackward
  kEvaluation,  // ends in the loss, without dropout
  kGeneration,  // ends in logits of one position of each sequence, no dropout
};

struct ModelOptions {
  Mode mode = Mode::kTraining;
  DType compute_dtype = DType::kF32;
  int64_t batch = 1;
  int64_t sequence = 1;
  // Only for kGeneration. Above 0: `sequence` tokens continue one text from cached keys and values
  // of at most this many positions (graph::BuilderOptions). 0: they are the sequence's beginning.
  int64_t cached_positions = 0;
  int64_t cached_texts = 1;        // with cached_positions: as graph::BuilderOptions has it
  bool rows_apart = false;         // the same
  bool every_logits = false;       // only for kGeneration: logits of all rows, not of the last
  int64_t lm_head_chunk_rows = 0;  // rows of logits that exist at a time; 0: all
  // Adds the inputs "documents" (ops::Attention) and "positions" (within the document), i32[N]
  // each.
  bool documents = false;
  bool segments = false;  // BERT: adds the input "segments", i32[N]
  // GPT-2 and Llama with documents: the loss is that of preferences, between the model and itself
  // without its adapters. Without lora the other is what it began with: its parameters have
  // kReferencePrefix before their names, and are base ones. Both run layer by layer beside each
  // other, so that a block's parameters are gathered once for the two.
  std::optional<ops::PreferenceOptions> preference = std::nullopt;
};

// The parameters and their order are the same in every mode. INVALID_ARGUMENT names the field: the
// model cannot be built. FAILED_PRECONDITION: it has a field of a later version.
absl::StatusOr<graph::Graph> BuildModel(const v1::ModelSpec& spec, const ModelOptions& options);

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_MODEL_H_
