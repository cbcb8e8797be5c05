// What changes from one micro-step to the next: the only arguments of an op that is already bound
// to its buffers. The session writes it between executor calls; ops of a running section read it.
#ifndef MILEPOST_ENGINE_RUNTIME_EXECUTOR_STEP_CONTEXT_H_
#define MILEPOST_ENGINE_RUNTIME_EXECUTOR_STEP_CONTEXT_H_

#include <array>
#include <cstdint>

#include "engine/graph/graph.h"

namespace milepost::runtime {

struct StepContext {
  // ---- forward and backward ----
  uint64_t seed = 0;
  int64_t step = 0;              // optimizer step being made, counted from 0
  bool first_micro_step = true;  // gradients are assigned, not added to
  bool last_micro_step = true;   // gradients are reduced
  // Position in the global sample order of the first row of this rank's micro-batch: dropout masks
  // are keyed by it, so they do not depend on world size or on how the batch is split.
  int64_t first_sample = 0;
  // By loss head: loss scale * its weight / its valid targets in the global batch.
  std::array<float, graph::kMaxLosses> gradient_factors = {};
  // More documents than were planned for, in this micro-batch of some rank: what a GPU's attention
  // is done by (documents.h). The same on every rank.
  bool many_documents = false;
  // More rows with a target, in a micro-batch of some rank, than a head that gathers them has in
  // one chunk: a GPU's head then takes all rows. The same on every rank, and in all micro-steps of
  // a step. Right wherever it is set; the contrary is for those who have counted.
  bool many_targets = true;
  // Nothing is known yet of 8-bit tensors: their scalings come from the micro-step's own numbers.
  bool new_scalings = false;
  int64_t position = 0;  // generation: the last row that counts, whose logits are wanted

  // ---- reduction of the scalars ----
  bool stop_requested = false;  // by this rank

  // ---- update ----
  double loss_scale = 1;  // what the gradients carry
  double clip_norm = 0;   // 0: no clipping
  bool skip_update = false;
  float learning_rate = 0;
  float beta1 = 0;
  float beta2 = 0;
  float beta3 = 0;
  float epsilon = 0;
  float weight_decay = 0;
  float momentum = 0;
  bool nesterov = false;
  float clip_factor = 1;     // over the loss scale
  int64_t update = 1;        // number of this update, counted from 1: bias correction
  float average_weight = 0;  // of the parameters in their average; the rest is the average's

  // ---- exchange of averages ----
  bool take_averages = false;  // false: the parameters come back
};

}  // namespace milepost::runtime

#endif  // MILEPOST_ENGINE_RUNTIME_EXECUTOR_STEP_CONTEXT_H_
