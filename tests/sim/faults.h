// What goes wrong, at random times: ranks, hosts, streams, the network, the coordinator, its disk.
#ifndef MILEPOST_TESTS_SIM_FAULTS_H_
#define MILEPOST_TESTS_SIM_FAULTS_H_

#include <functional>

#include "absl/time/time.h"
#include "tests/sim/network.h"
#include "tests/sim/world.h"

namespace milepost::sim {

class Faults {
 public:
  explicit Faults(World& world) : world_(world) {}

  // Until world.faults is false.
  void Begin();
  // Ends what goes on.
  void End();

  // ---- faults that come when it hurts, now and then ----
  void Sent(const coordinator::Action& action);  // the message has left
  void Ending(int worker);                       // ranks there are about to end in good order
  void Changed(const v1::JobRecord& record);     // the job has a new state
  void Saved();                                  // a checkpoint, maybe with the last space
  void Replacing(const StreamPtr& before);       // a Hello has come by a newer stream
  void Committing(const v1::JobRecord& record);  // the last that its attempt may do

 private:
  // Again and again, on average after `mean` on 200 workers.
  void Every(absl::Duration mean, std::function<void()> fault);
  int AnyWorker();
  void RankFails();
  void RankHangs();
  void HostFails();
  void AgentLeaves();
  void Partition();
  void BreakStream();
  void SlowLink();
  void Ghost();
  void DiskFull();
  void FillDisk();
  void DiskSlow();
  void DeviceOut();
  void Straggle();
  void Sicken();
  void FailRanksOf(int worker);
  // Something happens to the worker, within seconds.
  void Strike(int worker);
  void CrashWithLateWords(Agent& agent);

  World& world_;
};

}  // namespace milepost::sim

#endif  // MILEPOST_TESTS_SIM_FAULTS_H_
