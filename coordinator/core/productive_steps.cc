#include "coordinator/core/productive_steps.h"

#include <algorithm>

namespace milepost::coordinator {
namespace {

constexpr int kMostProductive = 16;

}  // namespace

double CutProductive(int64_t step, google::protobuf::RepeatedPtrField<v1::ProductiveSteps>* all) {
  double seconds = 0;
  for (v1::ProductiveSteps& piece : *all) {
    const int64_t end = std::max(piece.begin(), std::min(piece.end(), step));
    const auto had = static_cast<double>(piece.end() - piece.begin());
    const double share = had > 0 ? static_cast<double>(end - piece.begin()) / had : 0;
    piece.set_seconds(piece.seconds() * share);
    piece.set_end(end);
    seconds += piece.seconds();
  }
  all->erase(std::remove_if(all->begin(), all->end(),
                            [](const v1::ProductiveSteps& p) { return p.end() <= p.begin(); }),
             all->end());
  return seconds;
}

void AddProductive(const v1::Progress& progress, v1::JobRecord* record) {
  if (progress.step() <= progress.start_step() || progress.productive_seconds() <= 0) return;
  auto* all = record->mutable_productive();
  if (all->size() == kMostProductive) {
    // The oldest ones count together.
    all->Mutable(1)->set_begin(all->Get(0).begin());
    all->Mutable(1)->set_seconds(all->Get(0).seconds() + all->Get(1).seconds());
    all->DeleteSubrange(0, 1);
  }
  v1::ProductiveSteps* piece = all->Add();
  piece->set_begin(progress.start_step());
  piece->set_end(progress.step());
  piece->set_seconds(progress.productive_seconds());
}

}  // namespace milepost::coordinator
