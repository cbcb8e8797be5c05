// Who starts, who makes room, and why the others wait: one pass over a whole cluster.
//
//   ScheduleInput input = ...;                  // slot_flow.cc makes it of the State
//   Schedule schedule = PlanSchedule(std::move(input));
//   for (const Schedule::Start& start : schedule.starts) ...
//
// Pure. docs/operate/scheduling.md has the rules, and the argument why no gangs can block each
// other.
//
// Per kind of device (CPU and GPU slots have nothing to do with each other), in this order:
// 1. Jobs that were admitted already: those that others have made room for, and those that recover
//    from a failure, for as long as they back off and once after that.
// 2. The queue with the smallest share (fair_share.h) that has a job left; of its jobs the one of
//    the highest priority, then the one that came first.
// A job starts when all its ranks find slots, its queue's limit allows it, and it delays no
// reservation. The first one that must wait for slots reserves them: from then on a job starts only
// on slots of another class, or that this one will not need, or if it ends, by its time limit,
// before they come free. It may also have others make room (preemption.h).
// 3. Where nobody waits for slots, elastic jobs that run are told to go on with more ranks.
#ifndef MILEPOST_COORDINATOR_CORE_SCHEDULER_H_
#define MILEPOST_COORDINATOR_CORE_SCHEDULER_H_

#include "coordinator/core/schedule_input.h"

namespace milepost::coordinator {

Schedule PlanSchedule(ScheduleInput input);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_SCHEDULER_H_
