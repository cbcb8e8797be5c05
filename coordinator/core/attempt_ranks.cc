// The ranks of an attempt: how they are started, what becomes of them, and the failure that is
// taken for the attempt's.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "common/rank_state.h"
#include "common/spec/script.h"
#include "common/spec/sizes.h"
#include "common/utf8.h"
#include "coordinator/core/job_states.h"
#include "coordinator/core/transition.h"

namespace milepost::coordinator {
namespace {

constexpr int kMaxLastLines = 100;
constexpr size_t kMaxLineBytes = 1024;
constexpr size_t kMaxMessageBytes = 4096;
constexpr size_t kMaxPositionBytes = 256;
constexpr int kMaxCollectives = 8;

v1::RankPosition Bounded(v1::RankPosition position) {
  position.set_place(CutUtf8(position.place(), kMaxPositionBytes));
  while (position.collectives_size() > kMaxCollectives)
    position.mutable_collectives()->RemoveLast();
  for (v1::CollectivePosition& one : *position.mutable_collectives()) {
    one.set_group(CutUtf8(one.group(), kMaxPositionBytes));
    one.set_description(CutUtf8(one.description(), kMaxPositionBytes));
    one.set_call(CutUtf8(one.call(), kMaxPositionBytes));
  }
  return position;
}

v1::Failure FailureOf(const v1::RankReport& report, const std::string& worker, absl::Time now) {
  v1::Failure failure;
  failure.set_class_(report.failure_class());
  failure.set_rank(report.rank());
  failure.set_worker(worker);
  failure.set_generation(report.generation());
  std::string message = report.message();
  if (message.empty() && report.signal() != 0) {
    message = absl::StrCat("killed by signal ", report.signal());
  } else if (message.empty()) {
    message = absl::StrCat("exited with code ", report.exit_code());
  }
  failure.set_message(CutUtf8(message, kMaxMessageBytes));
  const int first = std::max(0, report.last_lines_size() - kMaxLastLines);
  for (int i = first; i < report.last_lines_size(); ++i) {
    failure.add_last_lines(CutUtf8(report.last_lines(i), kMaxLineBytes));
  }
  *failure.mutable_time() = IsSet(report.time()) ? report.time() : ToProto(now);
  return failure;
}

// Of a rank that told nothing: its host is to blame.
v1::Failure HostFailureOf(const v1::JobRecord& record, int rank, const std::string& why,
                          absl::Time now) {
  v1::Failure failure;
  failure.set_class_(v1::FAILURE_CLASS_HOST);
  failure.set_rank(rank);
  failure.set_worker(record.ranks(rank).worker());
  failure.set_generation(record.job().generation());
  failure.set_message(why);
  *failure.mutable_time() = ToProto(now);
  return failure;
}

std::vector<PlacedRank> InMeshOf(const v1::ResourceSpec& resources,
                                 const std::vector<PlacedRank>& slots) {
  const int tensor = TensorRanks(resources), stages = PipelineStages(resources);
  const int experts = ExpertRanks(resources);
  return InMesh(InGroups(slots, experts == 1 ? 1 : experts * tensor * stages), tensor, stages,
                ContextRanks(resources));
}

// Each island has a mesh of its own, of slots that stand one behind the other.
std::vector<PlacedRank> ByRank(const v1::JobSpec& spec, const std::vector<PlacedRank>& slots) {
  const int islands = Islands(spec), all = static_cast<int>(slots.size());
  if (islands == 1 || all % islands != 0) return InMeshOf(spec.resources(), slots);
  std::vector<PlacedRank> by_rank;
  for (auto begin = slots.begin(); begin != slots.end(); begin += all / islands) {
    const auto island = InMeshOf(spec.resources(), {begin, begin + all / islands});
    by_rank.insert(by_rank.end(), island.begin(), island.end());
  }
  return by_rank;
}

}  // namespace

void Transition::StartAttempt(int64_t number, const std::vector<PlacedRank>& slots) {
  v1::JobRecord& record = Change(number);
  v1::Job* job = record.mutable_job();
  const std::vector<PlacedRank> placed = ByRank(job->spec(), slots);
  job->set_generation(job->generation() + 1);
  job->set_attempts(job->attempts() + 1);
  Move(JobCause::kStarted, job);
  job->set_reason(v1::JOB_REASON_UNSPECIFIED);
  job->set_reason_detail("");
  job->clear_next_attempt_time();
  if (!IsSet(job->start_time())) *job->mutable_start_time() = ToProto(now_);
  record.set_ending(v1::ATTEMPT_ENDING_NONE);
  record.set_admission(v1::ADMISSION_NONE);
  *record.mutable_attempt_start_time() = ToProto(now_);
  record.set_rank_stopped(false);
  record.set_wanted_ranks(0);
  record.set_start_checkpoint_step(job->latest_checkpoint().empty() ? 0 : record.newest_step());
  record.set_start_checkpoint(job->latest_checkpoint().empty()
                                  ? job->spec().checkpoint().resume_from()
                                  : job->latest_checkpoint());
  record.clear_resize_after();
  const int sizes = record.sizes_size();
  if (sizes > 0 && record.sizes(sizes - 1).ranks() > static_cast<int>(placed.size())) {
    *record.mutable_resize_after() = ToProto(now_ + config_.resize_interval);
  }
  record.clear_ranks();
  job->clear_placements();
  for (size_t i = 0; i < placed.size(); ++i) {
    v1::RankRecord* rank = record.add_ranks();
    rank->set_rank(static_cast<int>(i));
    rank->set_worker(placed[i].worker);
    rank->set_slot(placed[i].slot);
    rank->set_incarnation(Worker(placed[i].worker)->worker().incarnation());
    v1::RankPlacement* placement = job->add_placements();
    placement->set_rank(rank->rank());
    placement->set_worker(rank->worker());
    placement->set_slot(rank->slot());
  }
  for (const v1::RankRecord& rank : record.ranks()) SendStart(record, rank);
}

void Transition::SendStart(const v1::JobRecord& record, const v1::RankRecord& rank) {
  Action action{.worker = rank.worker()};
  v1::StartRank* start = action.message.mutable_start_rank();
  start->set_job(record.job().name());
  start->set_uid(record.job().uid());
  start->set_generation(record.job().generation());
  start->set_rank(rank.rank());
  start->set_world(record.ranks_size());
  start->set_slot(rank.slot());
  *start->mutable_spec() = WithRanks(record.job().spec(), record.ranks_size());
  if (start->spec().script().has_sent_files()) {
    // A worker that knows of no such files would run the script in an empty folder.
    start->mutable_spec()->mutable_script()->set_folder(kFolderOfSentFiles);
  }
  start->set_checkpoint(record.start_checkpoint());
  start->set_checkpoint_step(record.start_checkpoint_step());
  outcome_.actions.push_back(std::move(action));
}

void Transition::SendStop(const v1::JobRecord& record, const v1::RankRecord& rank) {
  Action action{.worker = rank.worker()};
  v1::StopRank* stop = action.message.mutable_stop_rank();
  stop->set_job(record.job().name());
  stop->set_generation(record.job().generation());
  stop->set_rank(rank.rank());
  stop->set_graceful(rank.stop() == v1::STOP_KIND_GRACEFUL);
  stop->set_abort(rank.stop() == v1::STOP_KIND_ABORT);
  outcome_.actions.push_back(std::move(action));
}

void Transition::SendForget(const std::string& worker, const v1::RankReport& report) {
  Action action{.worker = worker};
  v1::ForgetRank* forget = action.message.mutable_forget_rank();
  forget->set_job(report.job());
  forget->set_generation(report.generation());
  forget->set_rank(report.rank());
  outcome_.actions.push_back(std::move(action));
}

// A report of a rank that is not gone, from the worker it is assigned to.
void Transition::RankReported(int64_t number, int index, const v1::RankReport& report) {
  const v1::RankRecord& known = Job(number)->ranks(index);
  if (!HasEnded(report.state()) && report.state() <= known.state()) return;  // nothing new
  v1::JobRecord& record = Change(number);
  v1::RankRecord* rank = record.mutable_ranks(index);
  rank->set_state(report.state());
  if (report.has_position()) *rank->mutable_position() = Bounded(report.position());
  if (index == 0 && report.has_progress()) NoteProgress(report.progress(), &record);
  if (!HasEnded(report.state())) return;
  rank->set_gone(true);
  SendForget(rank->worker(), report);
  if (report.state() == v1::RANK_STATE_STOPPED) {
    record.set_rank_stopped(true);
    BeginEnding(number, v1::ATTEMPT_ENDING_REQUEUE, v1::JOB_REASON_WORKER_LEAVING,
                absl::StrCat("rank ", index, " on ", rank->worker(), " was told to stop"));
  } else if (report.state() == v1::RANK_STATE_FAILED) {
    // A rank that we killed says nothing about why the attempt failed.
    const bool killed = rank->stop() == v1::STOP_KIND_KILL && report.signal() == 9;
    const bool aborted = rank->stop() == v1::STOP_KIND_ABORT && report.peer_lost();
    if (killed || aborted) return;
    v1::Failure failure = FailureOf(report, rank->worker(), now_);
    if (!report.peer_lost()) {
      NoteHostFailure(rank->worker(), failure.class_(), record.job().name());
    }
    const std::string detail =
        absl::StrCat("rank ", index, " on ", rank->worker(), " failed: ", failure.message());
    NoteFailure(&record, std::move(failure), report.peer_lost());
    BeginEnding(number, v1::ATTEMPT_ENDING_FAILED, v1::JOB_REASON_RANK_FAILED, detail);
    // The others cannot reach the common step any more. (A lost peer may have left in good order.)
    if (!report.peer_lost()) AbortRanks(&record);
  }
}

// The rank's process is gone with its worker, or never came to be.
void Transition::RankLost(int64_t number, int index, const std::string& why) {
  v1::JobRecord& record = Change(number);
  v1::RankRecord* rank = record.mutable_ranks(index);
  rank->set_gone(true);
  rank->set_state(v1::RANK_STATE_FAILED);
  NoteHostFailure(rank->worker(), v1::FAILURE_CLASS_HOST, record.job().name());
  const bool unwanted =
      record.ending() != v1::ATTEMPT_ENDING_NONE && record.ending() != v1::ATTEMPT_ENDING_FAILED;
  if (unwanted) return AbortRanks(&record);
  NoteFailure(&record, HostFailureOf(record, index, why, now_), /*peer_lost=*/false);
  BeginEnding(number, v1::ATTEMPT_ENDING_FAILED, v1::JOB_REASON_WORKER_LOST,
              absl::StrCat("rank ", index, " is lost: ", why));
  AbortRanks(&record);
}

// Processes that SIGKILL has not ended wait in the kernel, for a disk or a driver, nobody knows how
// long. The job goes on without them: they are fenced by their generation, and their slots are not
// free before they have ended. Of a worker that is not connected the lease decides.
void Transition::GiveUpRanks(int64_t number) {
  v1::JobRecord& record = Change(number);
  *record.mutable_stop_deadline() = ToProto(now_ + config_.lease + config_.kill_wait);
  std::set<std::string> workers;
  for (int i = 0; i < record.ranks_size(); ++i) {
    const v1::RankRecord& rank = record.ranks(i);
    const v1::WorkerRecord* worker = Worker(rank.worker());
    if (rank.gone() || worker == nullptr || !IsConnected(worker->worker())) continue;
    v1::RankReport report;
    report.set_job(record.job().name());
    report.set_generation(record.job().generation());
    report.set_rank(i);
    report.set_slot(rank.slot());
    AddStale(rank.worker(), report);
    workers.insert(rank.worker());
    RankLost(number, i,
             absl::StrCat("its process did not end within ",
                          absl::FormatDuration(config_.lease + config_.kill_wait),
                          " of SIGKILL: it waits in the kernel for a disk or a driver; `dmesg` on ",
                          rank.worker(), " may tell which"));
  }
  Settle(number);
  for (const std::string& worker : workers) SettleDrain(worker);
}

void Transition::NoteFailure(v1::JobRecord* record, v1::Failure failure, bool peer_lost) {
  const bool has_one = record->job().has_first_failure() &&
                       record->job().first_failure().generation() == failure.generation();
  if (has_one) {
    const bool known_peer_lost = record->first_failure_peer_lost();
    const bool earlier =
        FromProto(failure.time()) < FromProto(record->job().first_failure().time());
    if (peer_lost && !known_peer_lost) return;
    if (peer_lost == known_peer_lost && !earlier) return;
  }
  record->set_first_failure_peer_lost(peer_lost);
  *record->mutable_job()->mutable_first_failure() = std::move(failure);
}

}  // namespace milepost::coordinator
