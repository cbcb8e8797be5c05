// Users and administrators, modelled: they submit, repeat what was not answered, cancel, suspend,
// resume, update, change queues, drain workers. Every call may be lost on the way there or back,
// and is said again with the same request id.
#ifndef MILEPOST_TESTS_SIM_CLIENTS_H_
#define MILEPOST_TESTS_SIM_CLIENTS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/decide.h"
#include "tests/sim/world.h"

namespace milepost::sim {

class Clients {
 public:
  explicit Clients(World& world) : world_(world) {}

  // Queues, then jobs and all else until Calm.
  void Begin();
  // What users do so that all ends: suspended jobs go on, drains are over, what cannot run is
  // cancelled.
  void Settle();
  void CancelWhatCannotRun();
  // Somebody does something to the job, or its worker, of all times now.
  void Meddle(int64_t job, int worker);

 private:
  // Builds the event when the request arrives; nullopt: there is nothing to ask any more.
  using Ask = std::function<std::optional<coordinator::Event>(const coordinator::State&)>;
  using Answered = std::function<void(const absl::StatusOr<std::string>&)>;
  void Call(Ask ask, Answered answered, int tries = 0);

  void MakeQueues();
  void PutQueue(const std::string& id);
  void SubmitNext();
  void Submit();
  v1::JobSpec MakeSpec(JobTruth& truth);
  coordinator::JobSubmitted Submission(JobTruth& truth);
  void SendSubmission(JobTruth* truth);
  void UseNext();
  void Cancel(JobTruth* truth);
  void Suspend(JobTruth* truth);
  void Resume(JobTruth* truth, bool ended);
  void Update(JobTruth* truth);
  // Suspending is another matter from soon on.
  void MayAskAgain(JobTruth* truth);
  void DrainSome();
  void Drain(int worker, absl::Duration deadline, absl::Duration time);
  void EndDrain(int worker);
  void DeleteSome();
  // One that has been answered and has not ended; nullptr: none.
  JobTruth* AnyJob();

  World& world_;
  int64_t calls_ = 0;
  std::vector<int> drained_;  // or being deleted
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_CLIENTS_H_
