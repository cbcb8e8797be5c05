#include "coordinator/core/queue_view.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/spec/sizes.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/state.h"
#include "coordinator/core/wait_reason.h"

namespace milepost::coordinator {
namespace {

int Ranks(const v1::Job& job) { return LeastRanks(job.spec().resources()); }

// "workers/a with 4 such slots is down since 2026-01-01 10:00:00 UTC"
std::string AbsentText(const AbsentHost& host, int slots, absl::string_view what) {
  return absl::StrCat(host.worker, " with ", slots, slots == 1 ? " such slot" : " such slots",
                      " is ", what, " since ", TimeText(host.since));
}

// "workers/a with 4 such slots is drained since 2026-01-01 10:00:00 UTC: new disk; `milepost
// worker resume workers/a` takes it back"
std::string DrainText(const AbsentHost& host, int slots) {
  std::string text = AbsentText(host, slots, "drained");
  if (!host.reason.empty()) absl::StrAppend(&text, ": ", host.reason);
  if (!host.goes_away) {
    absl::StrAppend(&text, "; `milepost worker resume ", host.worker, "` takes it back");
  }
  return text;
}

// Drained workers with slots for the job, before what else is missing: who drains can take back.
void AddDrained(const KindView& view, const v1::ResourceSpec& wanted, int64_t slot_bytes,
                SlotSupply* supply) {
  std::vector<std::string> texts;
  for (const auto& [of, hosts] : view.summary.drained) {
    if (!IsPool(of.pool, wanted.pool()) || !IsModel(of.model, wanted.device_model())) continue;
    for (const AbsentHost& host : hosts.some) {
      const int slots = host.slots.With(slot_bytes);
      if (slots == 0) continue;
      texts.push_back(DrainText(host, slots));
      supply->can_be_taken_back |= !host.goes_away;
    }
    supply->missing_in_all += hosts.in_all - static_cast<int>(hosts.some.size());
  }
  supply->missing_in_all += static_cast<int>(texts.size());
  supply->missing.insert(supply->missing.begin(), texts.begin(), texts.end());
}

// Workers that are down, after what else is missing: some of them may be gone for good.
void AddDown(const KindView& view, const v1::ResourceSpec& wanted, int64_t slot_bytes,
             SlotSupply* supply) {
  for (const auto& [of, hosts] : view.summary.down) {
    if (!IsPool(of.pool, wanted.pool()) || !IsModel(of.model, wanted.device_model())) continue;
    for (const AbsentHost& host : hosts.some) {
      const int slots = host.slots.With(slot_bytes);
      if (slots == 0) continue;
      supply->missing.push_back(AbsentText(host, slots, "down"));
      ++supply->missing_in_all;
    }
    supply->missing_in_all += hosts.in_all - static_cast<int>(hosts.some.size());
  }
}

// What the pass left, without the slots that are too small for the job, or of another pool or
// model.
SlotSupply SupplyFor(const KindView& view, int64_t slot_bytes, const v1::Job& job) {
  const v1::ResourceSpec& wanted = job.spec().resources();
  SlotSupply supply = {.ready_workers = view.summary.ready_workers,
                       .by_kind = view.summary.usable,
                       .missing = view.summary.missing,
                       .missing_in_all = view.summary.missing_in_all};
  AddDrained(view, wanted, slot_bytes, &supply);
  int too_small = 0;
  int of_other_models = 0;
  int of_other_pools = 0;
  for (const auto& [of, slots] : view.slots) {
    if (!IsPool(of.pool, wanted.pool())) {
      of_other_pools += slots.usable.total;
      continue;
    }
    if (!IsModel(of.model, wanted.device_model())) {
      of_other_models += slots.usable.total;
      continue;
    }
    const int usable = slots.usable.With(slot_bytes);
    const int free = slots.free.With(slot_bytes);
    too_small += slots.usable.total - usable;
    if (usable > 0) supply.by_class[of] = usable;
    if (free > 0) supply.free_by_class[of] = free;
  }
  const auto add = [&](std::string why) {
    supply.missing.insert(supply.missing.begin(), std::move(why));
    ++supply.missing_in_all;
  };
  if (of_other_pools > 0) {
    add(absl::StrCat(of_other_pools, " in other pools than ", wanted.pool()));
  }
  if (of_other_models > 0) {
    add(absl::StrCat(of_other_models, " of other models than ", wanted.device_model()));
  }
  if (too_small > 0) {
    add(absl::StrCat(too_small, too_small == 1 ? " has" : " have", " less than the ",
                     GiBText(slot_bytes), " that a rank needs"));
  }
  return supply;
}

// "; 2 held by jobs/4 until 2026-01-01 10:00:00 UTC at the latest, 6 by jobs/5 until it ends"
std::string HoldersText(const KindView& view) {
  if (view.holders.empty()) return "";
  std::string text = "; ";
  for (const HolderView& holder : view.holders) {
    const bool limited = holder.release < absl::InfiniteFuture();
    const bool first = &holder == &view.holders.front();
    absl::StrAppend(&text, first ? "" : ", ", holder.slots, first ? " held by " : " by ",
                    JobName(holder.job), " until ",
                    limited ? TimeText(holder.release) + " at the latest" : "it ends");
  }
  const int more = view.holders_in_all - static_cast<int>(view.holders.size());
  if (more > 0) absl::StrAppend(&text, " and ", more, more == 1 ? " other" : " others");
  if (view.head_start < absl::InfiniteFuture()) {
    absl::StrAppend(&text, "; starts at ", TimeText(view.head_start), " at the latest");
  }
  return text;
}

std::string LimitText(const KindView& view, const v1::Job& job) {
  const std::string& name = job.spec().scheduling().queue();
  const auto queue = view.queues.find(name);
  const QueueSummary slots = queue == view.queues.end() ? QueueSummary{} : queue->second;
  return absl::StrCat("needs ", Ranks(job), Ranks(job) == 1 ? " slot" : " slots", "; queue ", name,
                      " holds ", slots.used, " of the ", slots.limit, " that it may have");
}

std::string DetailOf(const KindView& view, const Waiting& waiting, int64_t slot_bytes,
                     const v1::Job& job) {
  const std::string blocker = JobName(waiting.blocker);
  const int ahead = waiting.position - 1;
  switch (waiting.code) {
    case WaitCode::kNone:
    case WaitCode::kBackingOff:
      return job.reason_detail();
    case WaitCode::kSlots:
    case WaitCode::kTooFewSlots: {
      const v1::ResourceSpec& resources = job.spec().resources();
      const SlotWish wish = {.ranks = Ranks(job),
                             .device = resources.device(),
                             .of = {resources.pool(), resources.device_model()},
                             .slot_bytes = slot_bytes};
      SlotSupply supply = SupplyFor(view, slot_bytes, job);
      if (waiting.code == WaitCode::kSlots) return WaitReason(wish, supply) + HoldersText(view);
      AddDown(view, resources, slot_bytes, &supply);
      return WaitReason(wish, supply);
    }
    case WaitCode::kTurn:
      return absl::StrCat(ahead, ahead == 1 ? " job is" : " jobs are", " ahead in the queue; ",
                          blocker, " is next");
    case WaitCode::kLimit:
      return LimitText(view, job);
    case WaitCode::kTooFarLimit:
      return LimitText(view, job) + ": it can never run there (job update --queue, queue update)";
    case WaitCode::kRoomIsMade:
      return "others save a checkpoint and make room for it";
    case WaitCode::kDependency:
      return absl::StrCat("starts when ", blocker, " has succeeded");
    case WaitCode::kArrayLimit:
      return absl::StrCat("starts when a job of ", job.array().name(),
                          " has ended: ", job.array().max_parallel(), " of its ",
                          job.array().size(), " jobs run at a time");
    case WaitCode::kFailedDependency:
      return absl::StrCat("depends on ", blocker,
                          ", which has ended without success: resume that, ",
                          "cancel this one, or update its depends_on");
  }
  return "";
}

v1::JobReason ReasonOf(WaitCode code, v1::JobReason known) {
  switch (code) {
    case WaitCode::kNone:
    case WaitCode::kBackingOff:
      return known;
    case WaitCode::kTurn:
      return v1::JOB_REASON_WAITING_FOR_TURN;
    case WaitCode::kLimit:
    case WaitCode::kTooFarLimit:
      return v1::JOB_REASON_QUEUE_LIMIT;
    case WaitCode::kDependency:
    case WaitCode::kFailedDependency:
      return v1::JOB_REASON_DEPENDENCY;
    case WaitCode::kArrayLimit:
      return v1::JOB_REASON_ARRAY_LIMIT;
    default:
      break;
  }
  // How it came to wait is told as long as nothing else but slots keeps it.
  const bool moved = known == v1::JOB_REASON_WORKER_LEAVING || known == v1::JOB_REASON_PREEMPTED ||
                     known == v1::JOB_REASON_RESIZED || known == v1::JOB_REASON_STRAGGLER;
  return moved ? known : v1::JOB_REASON_WAITING_FOR_SLOTS;
}

}  // namespace

const Waiting* FindWaiting(const QueueView& view, int64_t job, v1::DeviceKind device) {
  const auto kind = view.kinds.find(device);
  if (kind == view.kinds.end()) return nullptr;
  const auto waiting = kind->second.waiting.find(job);
  return waiting == kind->second.waiting.end() ? nullptr : &waiting->second;
}

void DescribeWait(const QueueView& view, int64_t number, int64_t slot_bytes, v1::Job* job) {
  const v1::DeviceKind device = job->spec().resources().device();
  const Waiting* waiting = FindWaiting(view, number, device);
  const bool waits =
      job->state() == v1::JOB_STATE_QUEUED || job->state() == v1::JOB_STATE_RECOVERING;
  if (waiting == nullptr || !waits) return;
  const KindView& kind = view.kinds.at(device);
  job->set_queue_position(waiting->position);
  // While its last attempt winds up the job's own reason says why.
  if (job->placements_size() > 0) return;
  job->set_reason_detail(DetailOf(kind, *waiting, slot_bytes, *job));
  job->set_reason(ReasonOf(waiting->code, job->reason()));
}

}  // namespace milepost::coordinator
