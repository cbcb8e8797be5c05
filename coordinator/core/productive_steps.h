// The time in which a job has made the steps that still count: a piece for every attempt. Steps
// that a later attempt makes again, because it begins at an earlier one, count no more.
//
//   AddProductive(progress, &record);  // at the end of an attempt
//   double seconds = CutProductive(1000, record.mutable_productive());  // the next begins at 1000
//
// Pure.
#ifndef MILEPOST_COORDINATOR_CORE_PRODUCTIVE_STEPS_H_
#define MILEPOST_COORDINATOR_CORE_PRODUCTIVE_STEPS_H_

#include <cstdint>

#include "milepost/v1/job.pb.h"
#include "milepost/v1/store.pb.h"

namespace milepost::coordinator {

// Adds the steps of an attempt that ends with this progress. Of many attempts the oldest count
// together, so that a record stays small.
void AddProductive(const v1::Progress& progress, v1::JobRecord* record);

// Steps from `step` on are lost. Returns the seconds of the others.
double CutProductive(int64_t step, google::protobuf::RepeatedPtrField<v1::ProductiveSteps>* all);

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_CORE_PRODUCTIVE_STEPS_H_
