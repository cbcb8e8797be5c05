// A model that runs twice, layer by layer: once to be trained, and once without gradients, as what
// its loss compares it with. With adapters the second has the same parameters, without the
// adapters; else it has parameters of its own, which are what training began with. Internal to the
// families.
//
//   TwinStream<Stream> twin(model, options, b, linear);
//   twin.ForEach([&](Stream& s) { Layer(s, layer); });  // twice where there is a reference
//   twin.Parameter(name, ...);                          // of the first, or of the second
//   twin.Named("h.0.attn");                             // "reference.h.0.attn" of the second
#ifndef MILEPOST_ENGINE_MODELS_TWIN_STREAM_H_
#define MILEPOST_ENGINE_MODELS_TWIN_STREAM_H_

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"
#include "engine/models/lora.h"
#include "engine/models/model.h"
#include "engine/ops/lm_head/lm_head.h"
#include "engine/ops/preference/preference.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost::models {

// INVALID_ARGUMENT: a loss of preferences needs documents, and nothing else that is trained.
absl::Status CheckPreference(const v1::ModelSpec& model, const ModelOptions& options);

// Stream: what a family carries from layer to layer; at the end `y` is what it gives, and `head`
// the matrix that makes logits of it.
template <typename Stream>
class TwinStream {
 public:
  TwinStream(const v1::ModelSpec& model, const ModelOptions& options, graph::Builder& b,
             LoraLayers& linear)
      : b_(b),
        linear_(linear),
        twin_(options.preference && options.mode != Mode::kGeneration),
        shared_(model.has_lora()) {}

  bool twin() const { return twin_; }
  bool on_reference() const { return on_reference_; }
  Stream& own() { return own_; }

  template <typename Body>
  void ForEach(const Body& body) {
    body(own_);
    if (!twin_) return;
    SetReference(true);
    body(reference_);
    SetReference(false);
  }

  graph::ValueId Parameter(absl::string_view name, const graph::Shape& shape,
                           graph::Initializer initializer, double stddev = 0) {
    if (on_reference_ && shared_) return parameters_.at(name);
    const std::string own = Named(name);
    const graph::ValueId made = b_.Parameter(own, shape, initializer, stddev);
    parameters_.insert_or_assign(own, made);
    return made;
  }

  // The loss of preferences, of both streams.
  void AddPreferenceLoss(int64_t chunk_rows, graph::ValueId documents,
                         const ops::PreferenceOptions& options) {
    graph::ValueId log_probs[2] = {graph::kNoValue, graph::kNoValue};
    int i = 0;
    ForEach([&](Stream& s) {
      log_probs[i++] =
          ops::LmHeadLogProbs(b_, Named("log_probs"), s.y, s.head, b_.Targets(), chunk_rows);
    });
    ops::PreferenceLoss(b_, "dpo", log_probs[0], log_probs[1], documents, options);
  }

  std::string Named(absl::string_view name) const {
    return absl::StrCat(on_reference_ ? kReferencePrefix : "", name);
  }

 private:
  void SetReference(bool on) {
    on_reference_ = on;
    b_.SetConstant(on);
    linear_.SetReference(on);
  }

  graph::Builder& b_;
  LoraLayers& linear_;
  const bool twin_;
  const bool shared_;  // parameters
  bool on_reference_ = false;
  Stream own_, reference_;
  absl::flat_hash_map<std::string, graph::ValueId> parameters_;
};

}  // namespace milepost::models

#endif  // MILEPOST_ENGINE_MODELS_TWIN_STREAM_H_
