// What tests of scripts have in common.
#ifndef MILEPOST_TESTS_E2E_SCRIPTS_H_
#define MILEPOST_TESTS_E2E_SCRIPTS_H_

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/time/clock.h"

namespace milepost::e2e {

// The first worker's, of the cluster in `folder`.
inline std::string LogOfWorker(const std::string& folder) {
  std::ifstream file(folder + "/worker-0.log");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Whether that worker can make control groups: it says so when it starts.
inline bool HasLimits(const std::string& folder) {
  const absl::Time give_up = absl::Now() + absl::Minutes(1);
  while (absl::Now() < give_up) {
    const std::string log = LogOfWorker(folder);
    if (absl::StrContains(log, "scripts run without limits")) return false;
    if (absl::StrContains(log, "in a control group below")) return true;
    absl::SleepFor(absl::Milliseconds(5));
  }
  ADD_FAILURE() << "the worker said nothing of control groups";
  return false;
}

// Trains in lockstep, as ranks that reduce gradients do. The sum depends on every step, once.
inline constexpr char kTrainingScript[] = R"(
import os, time
from array import array
import milepost

here, steps = milepost.job(), 400
total, step = array('d', [0.0] * 100), 0
start = milepost.checkpoint.load()
if start is not None:
    total, step = start.state['total'], start.step
    assert start.state['name'] == ('sum', 1, None), start.state
    assert start.per_rank in (None, {'rank': here.rank, 'own': total}), start.per_rank
    with open('starts', 'a') as file: file.write(f'{here.rank} of {here.world_size} at {step}\n')
def meet(turn):
    # Rank 0 says whether another step is made: before the file `go` is there, none after 300.
    mine = f'at.{here.attempt}.{turn}.'
    with open('.' + mine + str(here.rank), 'w') as file:
        file.write(str(int(step < 300 or os.path.exists('go'))))
    os.rename(file.name, mine + str(here.rank))
    while not all(os.path.exists(mine + str(i)) for i in range(here.world_size)): time.sleep(0.0005)
    with open(mine + '0') as file: return file.read() == '1'
turn = 0
while step < steps:
    turn += 1
    if meet(turn):
        step += 1
        for i in range(100): total[i] = total[i] * 1.0001 + step + i
        milepost.report(step, steps, loss=1 / step)
    stop = milepost.should_stop()
    if stop or step % 50 == 0 and step != 300:
        state = {'total': total, 'name': ('sum', 1, None)}
        milepost.checkpoint.save(state, step, per_rank={'rank': here.rank, 'own': total})
    if stop: break
    if step == 220 and here.attempt == 1 and here.rank == 1 and os.path.exists('fail'):
        milepost.checkpoint.wait()
        os._exit(3)
    if step >= 10 and here.rank == 1: open('runs', 'w').write('yes\n')
if here.rank == 0 and step == steps:
    with open('result', 'w') as file: file.write(f'{total[7]:.6f}\n')
)";

}  // namespace milepost::e2e

#endif  // MILEPOST_TESTS_E2E_SCRIPTS_H_
