#include "engine/data/mixture.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace milepost::data {
namespace {

// So that neither the shuffling of places nor any two sets' orders are the same permutation.
constexpr uint64_t kPlacesSeed = 0xa0761d6478bd642f;
constexpr uint64_t kSetSeed = 0x9e3779b97f4a7c15;

}  // namespace

absl::StatusOr<MixtureOrder> MixtureOrder::Create(absl::Span<const double> weights, uint64_t seed) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> places;
  std::vector<double> rests;
  for (const double weight : weights) {
    const double exact = weight / sum * static_cast<double>(kBlock);
    // More than all of a block: another weight is negative.
    const bool of_block = exact >= 1 && exact <= static_cast<double>(kBlock);
    if (!(weight > 0) || !std::isfinite(sum) || !of_block) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight ", weight, " of a mixture whose weights sum to ", sum,
                       ": not above 0, or less than a millionth of all"));
    }
    places.push_back(static_cast<int64_t>(exact));
    rests.push_back(exact - std::floor(exact));
  }
  if (places.empty()) return absl::InvalidArgumentError("a mixture of nothing");
  std::vector<size_t> by_rest(places.size());
  std::iota(by_rest.begin(), by_rest.end(), 0);
  std::stable_sort(by_rest.begin(), by_rest.end(),
                   [&](size_t a, size_t b) { return rests[a] > rests[b]; });
  int64_t left = kBlock - std::accumulate(places.begin(), places.end(), int64_t{0});
  MP_CHECK(left >= 0 && left <= static_cast<int64_t>(places.size())) << left;
  for (const size_t set : by_rest) {
    if (left-- > 0) ++places[set];
  }
  MixtureOrder order;
  order.seed_ = seed ^ kPlacesSeed;
  order.ends_.resize(places.size());
  std::partial_sum(places.begin(), places.end(), order.ends_.begin());
  return order;
}

MixtureOrder::Pick MixtureOrder::At(int64_t global_sample) const {
  const int64_t block = global_sample / kBlock;
  const Permutation shuffle(kBlock, seed_, static_cast<uint64_t>(block));
  const auto place = static_cast<int64_t>(shuffle(static_cast<uint64_t>(global_sample % kBlock)));
  const auto set =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), place) - ends_.begin());
  const int64_t begin = set == 0 ? 0 : ends_[set - 1];
  return {set, block * PlacesOf(set) + place - begin};
}

absl::StatusOr<std::shared_ptr<const TokenMixture>> TokenMixture::Open(
    const std::vector<WeightedPath>& paths, const DatasetOptions& options, uint64_t seed) {
  std::shared_ptr<TokenMixture> mixture(new TokenMixture);
  MP_CHECK(options.labels.empty() || paths.size() == 1) << "labels of a mixture";
  std::vector<double> weights;
  for (const WeightedPath& path : paths) {
    DatasetOptions own = options;
    own.loss_mask = path.loss_mask;
    MP_ASSIGN_OR_RETURN(auto dataset, TokenDataset::Open(path.path, own));
    const SampleOrder order(dataset->samples(), seed + mixture->sets_.size() * kSetSeed);
    mixture->sets_.push_back({std::move(dataset), order});
    weights.push_back(path.weight);
  }
  if (paths.size() != 1) {
    MP_ASSIGN_OR_RETURN(MixtureOrder order, MixtureOrder::Create(weights, seed));
    mixture->order_.push_back(std::move(order));
  }
  // Targets vary where those of any set do.
  mixture->fields_ = mixture->sets_[0].dataset->fields();
  for (const Set& set : mixture->sets_) {
    if (set.dataset->fields()[1].targets == kVaries) mixture->fields_[1].targets = kVaries;
  }
  return mixture;
}

std::shared_ptr<const TokenMixture> TokenMixture::Of(std::shared_ptr<const TokenDataset> dataset,
                                                     const SampleOrder& order) {
  std::shared_ptr<TokenMixture> mixture(new TokenMixture);
  mixture->fields_ = dataset->fields();
  mixture->sets_.push_back({std::move(dataset), order});
  return mixture;
}

int64_t TokenMixture::samples() const {
  int64_t samples = 0;
  for (const Set& set : sets_) samples += set.dataset->samples();
  return samples;
}

absl::Status TokenMixture::Fetch(int64_t first, int64_t count, absl::Span<char* const> into) const {
  const auto size = static_cast<size_t>(count * sequence_length());
  if (into.size() > 2) {
    absl::InlinedVector<int32_t*, kInlineFields> arrays;
    for (char* field : into) arrays.push_back(reinterpret_cast<int32_t*>(field));
    return sets_[0].dataset->FetchBatch(sets_[0].order, first, count, {arrays[0], size},
                                        {arrays[1], size}, absl::MakeSpan(arrays).subspan(2));
  }
  return FetchBatch(first, count, {reinterpret_cast<int32_t*>(into[0]), size},
                    {reinterpret_cast<int32_t*>(into[1]), size});
}

absl::StatusOr<int64_t> TokenMixture::CountTargets(size_t field, int64_t first,
                                                   int64_t count) const {
  if (fields_[field].targets == kVaries) return CountByFetching(*this, field, first, count);
  return SampleSource::CountTargets(field, first, count);
}

absl::Status TokenMixture::AddTo(Fingerprint* print) const {
  const int64_t places =
      std::max<int64_t>(4, kFingerprintPlaces / static_cast<int64_t>(sets_.size()));
  for (const Set& set : sets_) MP_RETURN_IF_ERROR(set.dataset->AddTo(print, places));
  return absl::OkStatus();
}

absl::Status TokenMixture::FetchBatch(int64_t first, int64_t count, absl::Span<int32_t> tokens,
                                      absl::Span<int32_t> targets) const {
  if (order_.empty()) {
    return sets_[0].dataset->FetchBatch(sets_[0].order, first, count, tokens, targets);
  }
  const auto length = static_cast<size_t>(sequence_length());
  for (int64_t i = 0; i < count; ++i) {
    const MixtureOrder::Pick pick = order_[0].At(first + i);
    const Set& set = sets_[pick.set];
    const size_t at = static_cast<size_t>(i) * length;
    MP_RETURN_IF_ERROR(set.dataset->FetchBatch(set.order, pick.index, 1, tokens.subspan(at, length),
                                               targets.subspan(at, length)));
  }
  return absl::OkStatus();
}

}  // namespace milepost::data
