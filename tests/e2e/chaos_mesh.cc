#include "tests/e2e/chaos_mesh.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/cluster.h"

namespace milepost::e2e {
namespace {

constexpr int kMostRanks = 8;

}  // namespace

std::string ParseMesh(const std::string& text, Mesh* mesh) {
  *mesh = {.data = 1};
  std::map<std::string, int*> sizes = {{"data", &mesh->data},
                                       {"tensor", &mesh->tensor},
                                       {"pipeline", &mesh->pipeline},
                                       {"context", &mesh->context}};
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::pair<std::string, std::string> named = absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto size = sizes.find(named.first);
    if (size == sizes.end()) {
      return absl::StrCat("must be of data, tensor, pipeline and context, each once, got \"", part,
                          "\"");
    }
    if (!absl::SimpleAtoi(named.second, size->second) || *size->second < 1 ||
        *size->second > kMostRanks) {
      return absl::StrCat(named.first, " must be 1 to ", kMostRanks, ", got \"", named.second,
                          "\"");
    }
    sizes.erase(size);
  }
  if (mesh->Ranks() % 2 == 0 && mesh->Ranks() <= kMostRanks) return "";
  return absl::StrCat("must have an even number of ranks, at most ", kMostRanks, ", got ",
                      mesh->Ranks());
}

v1::JobSpec MeshJob(const std::string& folder, int64_t steps, const Mesh& mesh) {
  v1::JobSpec spec = SmallJob(folder, steps);
  if (mesh.data == mesh.Ranks() && mesh.data == 2) return spec;
  v1::Gpt2Spec& model = *spec.mutable_model()->mutable_gpt2();
  model.set_layers(std::max<int64_t>(model.layers(), mesh.pipeline));
  model.set_heads(std::max<int64_t>(model.heads(), mesh.tensor));
  v1::ResourceSpec& resources = *spec.mutable_resources();
  resources.set_ranks(mesh.Ranks());
  resources.set_threads_per_rank(1);
  if (mesh.tensor > 1) resources.mutable_mesh()->set_tensor(mesh.tensor);
  if (mesh.pipeline > 1) resources.mutable_mesh()->set_pipeline(mesh.pipeline);
  if (mesh.context > 1) resources.mutable_mesh()->set_context(mesh.context);
  v1::BatchSpec& batch = *spec.mutable_train()->mutable_batch();
  batch.set_micro(mesh.pipeline > 1 ? 1 : batch.micro());
  batch.set_accumulation(mesh.pipeline > 1 ? 2 * mesh.pipeline : 1);
  batch.set_global(batch.micro() * batch.accumulation() * mesh.data);
  return spec;
}

}  // namespace milepost::e2e
