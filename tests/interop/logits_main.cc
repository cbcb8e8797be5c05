// The logits of a Hugging Face folder's weights in our graph of the model, computed by the fp64
// reference interpreter:
//
//   interop_logits SPEC FOLDER 1,2,3     one line of logits per position
//
// SPEC is a job spec with the folder's model.
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/spec/parse.h"
#include "common/spec/validate.h"
#include "common/status_macros.h"
#include "engine/models/hugging_face.h"
#include "engine/models/model.h"
#include "engine/ops/reference/reference_interpreter.h"
#include "engine/state/safetensors.h"
#include "milepost/v1/job_spec.pb.h"

namespace milepost {
namespace {

absl::Status LoadWeights(const std::string& folder, const v1::ModelSpec& model,
                         const graph::Graph& graph, graph::ReferenceInterpreter* reference) {
  MP_ASSIGN_OR_RETURN(const auto weights, state::SafetensorsFolder::Open(folder));
  for (const graph::Parameter& parameter : graph.parameters) {
    const std::string& name = graph.values[parameter.value].name;
    const state::SafetensorsFolder::Place* place = nullptr;
    for (const models::HfPlace& stored : models::HfPlaces(model, name)) {
      if (place == nullptr && stored.of == 0) place = weights->Find(stored.tensor);
    }
    if (place == nullptr) return absl::NotFoundError(absl::StrCat(folder, " holds no ", name));
    std::vector<double>& values = reference->values(parameter.value);
    if (static_cast<int64_t>(values.size()) != place->tensor->elements) {
      return absl::InvalidArgumentError(absl::StrCat(name, " has another size"));
    }
    std::vector<float> read(values.size());
    MP_RETURN_IF_ERROR(
        place->file->ReadF32(*place->tensor, 0, place->tensor->elements, read.data()));
    values.assign(read.begin(), read.end());
  }
  return absl::OkStatus();
}

absl::Status PrintLogits(const std::string& spec_path, const std::string& folder,
                         const std::string& ids) {
  MP_ASSIGN_OR_RETURN(const v1::JobSpec spec, LoadJobSpec(spec_path));
  std::vector<int32_t> tokens;
  for (absl::string_view id : absl::StrSplit(ids, ',')) {
    if (!absl::SimpleAtoi(id, &tokens.emplace_back())) {
      return absl::InvalidArgumentError(absl::StrCat("'", id, "' is not a token id"));
    }
  }
  MP_ASSIGN_OR_RETURN(
      const graph::Graph graph,
      models::BuildModel(spec.model(), {.mode = models::Mode::kGeneration,
                                        .sequence = static_cast<int64_t>(tokens.size())}));
  graph::ReferenceInterpreter reference(graph);
  MP_RETURN_IF_ERROR(LoadWeights(folder, spec.model(), graph, &reference));
  for (size_t position = 0; position < tokens.size(); ++position) {
    reference.integers(graph.Input("tokens")).assign(tokens.begin(), tokens.end());
    reference.Run({.position = static_cast<int64_t>(position)});
    for (const double logit : reference.values(graph.logits)) std::printf("%.9g ", logit);
    std::printf("\n");
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace milepost

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: interop_logits SPEC FOLDER IDS\n";
    return 2;
  }
  const absl::Status status = milepost::PrintLogits(argv[1], argv[2], argv[3]);
  if (status.ok()) return 0;
  std::cerr << "interop_logits: " << status << "\n";
  return 1;
}
