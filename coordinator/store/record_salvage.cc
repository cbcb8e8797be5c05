#include "coordinator/store/record_salvage.h"

#include <rocksdb/db.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "coordinator/store/keys.h"

namespace milepost::coordinator {
namespace {

constexpr int64_t kProbedBeyond = 10'000;  // the last number that is known
constexpr int64_t kMostProbes = 10'000'000;

struct Family {
  char prefix;
  const char* name;  // of the records, as people know them
  bool numbered;     // by job or checkpoint
};
constexpr Family kFamilies[] = {{'!', "counters", false},
                                {kJobPrefix, "jobs", true},
                                {kManifestPrefix, "checkpoints", true},
                                {kFlagsPrefix, "pins of checkpoints", true},
                                {kDeletedPrefix, "deletions of checkpoints", true},
                                {kLogSummaryPrefix, "summaries of logs, of jobs", true},
                                {kWorkerPrefix, "workers", false},
                                {kQueuePrefix, "queues", false},
                                {kTokenPrefix, "tokens", false},
                                {kJoinTokenPrefix, "join tokens", false},
                                {kJoinedPrefix, "workers that have joined", false},
                                {kTemplatePrefix, "templates", false},
                                {kDeliveryPrefix, "webhook messages", false},
                                {kRendezvousPrefix, "rendezvous keys", false},
                                {kChoicesPrefix, "algorithms, of jobs", true}};

constexpr char kAnotherKind[] = "records of another kind";

std::string Readable(const Family& family, absl::string_view key) {
  if (family.numbered && key.size() >= 9) return absl::StrCat(ReadBe64(key.substr(1)));
  std::string text(key.substr(std::min<size_t>(1, key.size())));
  for (char& c : text) c = c < ' ' || c > '~' ? '?' : c;
  return text;
}

class Reader {
 public:
  Reader(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* meta) : db_(db), meta_(meta) {}

  SalvagedRecords ReadAll() {
    for (const Family& family : kFamilies) ReadFamily(family);
    // None is left out because it is not in the list above.
    for (int prefix = 0; prefix < 255; ++prefix) {
      const auto known = [&](const Family& one) { return one.prefix == static_cast<char>(prefix); };
      if (std::any_of(std::begin(kFamilies), std::end(kFamilies), known)) continue;
      ReadFamily({static_cast<char>(prefix), kAnotherKind, false});
    }
    return std::move(records_);
  }

 private:
  // From both ends: RocksDB's iterators stop at a block or a table that they cannot read, and not
  // always say so. What lies between is asked for by number where it has one.
  void ReadFamily(const Family& family) {
    const std::string first(1, family.prefix);
    const std::string end(1, static_cast<char>(family.prefix + 1));
    std::string low, high;  // the last and the first key on this side of what cannot be read
    std::unique_ptr<rocksdb::Iterator> back(db_->NewIterator(rocksdb::ReadOptions(), meta_));
    for (back->SeekForPrev(end); back->Valid(); back->Prev()) {
      if (back->key() == rocksdb::Slice(end)) continue;
      if (!back->key().starts_with(first)) break;
      high = back->key().ToString();
      records_.all[high] = back->value().ToString();
    }
    std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions(), meta_));
    bool met = false;
    for (it->Seek(first); it->Valid() && it->key().starts_with(first); it->Next()) {
      const std::string key = it->key().ToString();
      met = !high.empty() && key >= high;
      std::string value;  // as it was last written: a newer one may be what cannot be read
      if (met || !db_->Get(rocksdb::ReadOptions(), meta_, key, &value).ok()) break;
      low = key;
      records_.all[low] = value;
    }
    const bool nothing = low.empty() && high.empty();
    if (back->status().ok() && it->status().ok() && (met || nothing)) return;
    if (family.numbered) return Probe(family, low, high);
    TellBetween(family, low, high);
  }

  // Also where what cannot be read is of the family before: that is not known.
  void TellBetween(const Family& family, const std::string& low, const std::string& high) {
    if (family.name == kAnotherKind && low.empty() && high.empty()) return;
    const std::string from = low.empty() ? "" : absl::StrCat(" after ", Readable(family, low));
    const std::string to = high.empty() ? "" : absl::StrCat(" before ", Readable(family, high));
    records_.lost.push_back(absl::StrCat(family.name, from, to, ", if there were any"));
  }

  void Probe(const Family& family, const std::string& low, const std::string& high) {
    const int64_t first = low.empty() ? 0 : int64_t(ReadBe64(absl::string_view(low).substr(1))) + 1;
    int64_t end = high.empty() ? Known(IsOfCheckpoints(family.prefix)) + kProbedBeyond
                               : int64_t(ReadBe64(absl::string_view(high).substr(1)));
    if (end - first > kMostProbes) {
      end = first + kMostProbes;
      records_.lost.push_back(absl::StrCat(family.name, " from ", end, " on"));
    }
    std::vector<std::pair<int64_t, int64_t>> lost;  // first and last of ranges
    for (int64_t number = first; number < end; ++number) {
      std::string value;
      const std::string key = NumberKey(family.prefix, number);
      const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), meta_, key, &value);
      if (status.ok()) records_.all[key] = value;
      if (status.ok() || status.IsNotFound()) continue;
      if (lost.empty() || lost.back().second < number - 1) lost.emplace_back(number, number);
      lost.back().second = number;
    }
    std::vector<std::string> ranges;
    for (const auto& [begin, last] : lost) {
      ranges.push_back(begin == last ? absl::StrCat(begin) : absl::StrCat(begin, " to ", last));
    }
    if (ranges.empty()) return;
    records_.lost.push_back(
        absl::StrCat(family.name, " ", absl::StrJoin(ranges, ", "), ", those that there were"));
  }

  // The last number of a job or checkpoint that any record has told so far.
  int64_t Known(bool of_checkpoints) const {
    int64_t known = 0;
    const auto counter = records_.all.find(of_checkpoints ? kNextCheckpointKey : kLastJobKey);
    if (counter != records_.all.end() && counter->second.size() == 8) {
      known = static_cast<int64_t>(ReadBe64(counter->second));
    }
    for (const auto& [key, value] : records_.all) {
      const bool job = key[0] == kJobPrefix || key[0] == kLogSummaryPrefix;
      if (key.size() < 9 || !(of_checkpoints ? IsOfCheckpoints(key[0]) : job)) continue;
      known = std::max(known, static_cast<int64_t>(ReadBe64(absl::string_view(key).substr(1))));
    }
    return known;
  }

  rocksdb::DB* const db_;
  rocksdb::ColumnFamilyHandle* const meta_;
  SalvagedRecords records_;
};

}  // namespace

SalvagedRecords ReadRecords(rocksdb::DB* db, rocksdb::ColumnFamilyHandle* meta) {
  return Reader(db, meta).ReadAll();
}

}  // namespace milepost::coordinator
