// Any bytes as what the store keeps: a manifest is refused or is the one that was written; a
// manifest's tensors and chunks are refused or cover each other; records of jobs, workers and
// queues, however little sense they make, are loaded and decided on without a crash; and so are
// those of tokens, templates, webhook messages, logs and curves used.
#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "coordinator/core/curve_set.h"
#include "coordinator/core/decide.h"
#include "coordinator/rpc/template_table.h"
#include "coordinator/security/principal.h"
#include "coordinator/security/token_table.h"
#include "coordinator/store/coverage.h"
#include "coordinator/store/database.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/log_store.h"
#include "coordinator/store/manifest.h"
#include "coordinator/store/store.h"
#include "milepost/v1/store.pb.h"
#include "tests/fuzz/scratch_dir.h"

namespace {

using namespace milepost;               // NOLINT
using namespace milepost::coordinator;  // NOLINT

void Manifest(absl::string_view bytes) {
  (void)DecodeManifest(bytes);
  v1::StoredManifest manifest;
  if (!manifest.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  const auto decoded = DecodeManifest(EncodeManifest(manifest));
  MP_CHECK(decoded.ok()) << decoded.status();
  const auto& tensors = manifest.manifest().tensors();
  if (!CheckTensors(tensors).ok()) return;
  const std::vector<v1::StoredChunk> chunks(manifest.chunks().begin(), manifest.chunks().end());
  if (!CheckCoverage(tensors, chunks).ok()) return;
  int64_t covered = 0, wanted = 0;
  for (const v1::StoredChunk& chunk : chunks) covered += chunk.end() - chunk.begin();
  for (const v1::TensorInfo& tensor : tensors) wanted += *ElementCount(tensor);
  MP_CHECK(covered == wanted) << covered << " of " << wanted;
}

template <typename Record>
bool Parse(absl::string_view bytes, Record* record) {
  return record->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);

// A token that was revoked does not hold, and what was removed for another is gone.
void Tokens(absl::string_view bytes) {
  v1::TokenRecord record;
  if (!Parse(bytes, &record)) return;
  const std::string name = record.token().name();
  int stored = 1;
  TokenTable table(
      {record}, [](const auto&, bool) { return absl::OkStatus(); },
      [&](const std::string&) {
        --stored;
        return absl::OkStatus();
      },
      {.of_all = 2, .of_project = 1});
  (void)table.Authenticate("mpt_" + name, kNow);
  (void)table.List(LocalPrincipal(), "", 10);
  v1::CreateTokenRequest request;
  request.set_user("alice");
  v1::Grant* grant = request.add_grants();
  grant->set_project("p");
  grant->set_role(v1::ROLE_VIEWER);
  for (int i = 0; i < 2; ++i) {
    const auto made = table.Create(request, LocalPrincipal(), kNow);
    if (!made.ok()) continue;
    MP_CHECK(table.Authenticate(made->secret(), kNow).ok());
    MP_CHECK(++stored <= 2) << stored;
    MP_CHECK(table.Revoke(made->token().name(), LocalPrincipal(), kNow).ok());
    MP_CHECK(!table.CheckHolds(made->token().name(), kNow).ok());
  }
  if (!table.Revoke(name, LocalPrincipal(), kNow).ok()) return;
  MP_CHECK(!table.CheckHolds(name, kNow).ok());
}

// Something that lives in a directory of its own. Made anew now and then: what was deleted slows
// reading down.
template <typename T>
class Renewed {
 public:
  using Open = absl::StatusOr<std::unique_ptr<T>> (*)(const std::string& dir);

  // Opens at once, so that at exit it goes before RocksDB's own static data.
  explicit Renewed(Open open) : open_(open) { Renew(); }
  T* Get() {
    if (++uses_ % 200 == 0) Renew();
    return held_.get();
  }

 private:
  void Renew() {
    held_.reset();
    dir_ = std::make_unique<ScratchDir>();
    held_ = *open_(dir_->path());
  }

  const Open open_;
  int uses_ = 0;
  std::unique_ptr<ScratchDir> dir_;
  std::unique_ptr<T> held_;
};

Store* OpenStore() {
  static Renewed<Store> store([](const std::string& dir) { return Store::Open({.dir = dir}); });
  return store.Get();
}

void Templates(absl::string_view bytes) {
  v1::TemplateRecord record;
  if (!Parse(bytes, &record)) return;
  const std::string name = record.template_().name();
  Store* const store = OpenStore();
  MP_CHECK(store->PutTemplate(record).ok());
  TemplateTable table(store);
  MP_CHECK(table.Load().ok());
  const auto found = table.Get(name);
  MP_CHECK(found.ok() && found->spec_yaml() == record.template_().spec_yaml());
  MP_CHECK(table.List("", 10, [](const std::string&) { return true; }).size() <= 1);
  v1::Template changed = *found;
  changed.set_spec_yaml("train: {steps: 5}");
  if (table.Put(changed, {}, kNow).ok()) {
    MP_CHECK(absl::IsAborted(table.Put(changed, {}, kNow).status()));
  }
  MP_CHECK(table.Delete(name, "").ok());
}

void Deliveries(absl::string_view bytes) {
  StoredDelivery message = {.number = bytes.size()};
  if (!Parse(bytes, &message.delivery)) return;
  Store* const store = OpenStore();
  MP_CHECK(store->Write(Outcome(), {message}).ok());
  const auto loaded = store->LoadDeliveries();
  MP_CHECK(loaded.ok() && loaded->size() == 1 && loaded->at(0).number == message.number);
  MP_CHECK(loaded->at(0).delivery.body() == message.delivery.body());
  MP_CHECK(store->ForgetDelivery(message.number).ok());
}

// Whatever a summary says of a log, what comes after it is kept.
void LogSummaries(absl::string_view bytes) {
  static Renewed<Database> databases(&Database::Open);
  Database* const database = databases.Get();
  rocksdb::WriteBatch put;
  put.Put(database->meta(), NumberKey(kLogSummaryPrefix, 1), std::string(bytes));
  MP_CHECK(database->Write(&put, /*sync=*/false).ok());
  LogStore logs(database, {.lines_per_job = 5, .bytes_per_job = 1000, .total_bytes = 1000});
  MP_CHECK(logs.Load().ok());
  for (int i = 0; i < 4; ++i) {
    const auto before = logs.GetRange(1);
    MP_CHECK(before.ok());
    v1::LogLine line;
    line.set_text("line");
    MP_CHECK(logs.Append(1, {line, line}).ok());
    const auto lines = logs.Read(1, before->next, 10);
    MP_CHECK(lines.ok() && lines->size() == 2) << lines->size();
    if (logs.IsOverTotal()) {
      MP_CHECK(logs.TrimTotal([](int64_t) { return absl::InfiniteFuture(); }).ok());
    }
  }
  rocksdb::WriteBatch clear;
  clear.Delete(database->meta(), NumberKey(kLogSummaryPrefix, 1));
  clear.DeleteRange(database->logs(), LogKey(1, 0), LogKey(2, 0));
  MP_CHECK(database->Write(&clear, /*sync=*/false).ok());
}

// Whatever blocks there are, the curve is bounded, takes reports, and is the same once stored.
void Curves(absl::string_view bytes) {
  v1::CurveBlock block;
  if (!Parse(bytes, &block)) return;
  CurveSet curves;
  const auto number = static_cast<uint32_t>(block.generation());
  for (const uint32_t at : {0U, 1U, number}) {
    curves.Restore("train_loss", at, block);
    curves.Restore(block.points().name(), at, block);
  }
  RankZeroReport report = {.job = 1, .generation = block.generation(), .time = kNow};
  report.progress.set_step(block.reports_size());
  report.progress.set_start_step(block.reports_size() / 2);
  for (int i = 0; i < 3; ++i) {
    curves.Take(report);
    report.progress.set_step(report.progress.step() + 1);
    if (report.generation < INT64_MAX) ++report.generation;
  }
  const v1::JobCurves described = curves.Describe(0);
  for (const v1::Curve& curve : described.curves()) {
    MP_CHECK(curve.steps_size() <= static_cast<int>(kCurvePoints));
  }
  CurveSet again;
  curves.NotStored();
  for (const CurveBlockChange& change : curves.TakeChanges()) {
    if (change.points.has_value()) again.Restore(change.name, change.block, *change.points);
  }
  MP_CHECK(again.Describe(0).SerializeAsString() == described.SerializeAsString());
}

// As the coordinator does after its start.
void Records(absl::string_view bytes) {
  State state;
  v1::JobRecord job;
  if (Parse(bytes, &job) && JobNumber(job.job().name()) > 0) state.PutJob(job);
  v1::WorkerRecord worker;
  if (Parse(bytes, &worker)) state.PutWorker(worker);
  v1::QueueRecord queue;
  if (Parse(bytes, &queue)) state.PutQueue(queue);
  const Config config;
  absl::Time now = kNow;
  state.Apply(Decide(state, CoordinatorRestarted{}, now, config));
  for (int i = 0; i < 3; ++i) {
    now += absl::Minutes(1);
    state.Apply(Decide(state, Tick{}, now, config));
    state.Apply(DecideSchedule(state, now, config));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.empty()) return 0;
  constexpr void (*kKinds[])(absl::string_view) = {Manifest,   Records,      Tokens, Templates,
                                                   Deliveries, LogSummaries, Curves};
  kKinds[static_cast<uint8_t>(bytes[0]) % std::size(kKinds)](bytes.substr(1));
  return 0;
}
