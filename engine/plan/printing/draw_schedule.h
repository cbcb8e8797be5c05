// A picture of a pipeline's step: a row for each stage, a box for each pass, and what is empty is
// time that the stage waits.
//
//   const std::string svg = DrawSchedule(shape, seconds_of_passes, "small.yaml on an h200");
//
// Pure.
#ifndef MILEPOST_ENGINE_PLAN_PRINTING_DRAW_SCHEDULE_H_
#define MILEPOST_ENGINE_PLAN_PRINTING_DRAW_SCHEDULE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/plan/pipeline/schedule.h"

namespace milepost::plan {

// An SVG file, self-contained. `times`: by stage, in seconds.
std::string DrawSchedule(const PipelineShape& shape, const std::vector<PassTimes>& times,
                         absl::string_view title);

}  // namespace milepost::plan

#endif  // MILEPOST_ENGINE_PLAN_PRINTING_DRAW_SCHEDULE_H_
