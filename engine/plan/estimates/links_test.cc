#include "engine/plan/estimates/links.h"

#include "gtest/gtest.h"

namespace milepost::plan {
namespace {

using graph::OpKind;

struct Mesh {
  int world = 1;
  int tensor = 1;
  int stage = 0;
  int group = 0;
};

PlanOptions Options(const Mesh& mesh) {
  return {.device = DeviceKind::kCuda,
          .world = mesh.world,
          .tensor = mesh.tensor,
          .zero_stage = mesh.stage,
          .shard_ranks = mesh.group};
}

std::pair<int, int> Who(OpKind kind, const Mesh& mesh, int ranks_per_host) {
  const Participants who = ParticipantsOf(kind, Options(mesh), ranks_per_host);
  return {who.ranks, who.on_a_host};
}

using Pair = std::pair<int, int>;

TEST(Links, TensorRanksAreNeighbours) {
  EXPECT_EQ(Who(OpKind::kTensorReduce, {.world = 8, .tensor = 4}, 8), Pair(4, 4));
  EXPECT_EQ(Who(OpKind::kTensorReduce, {.world = 4, .tensor = 16}, 8), Pair(16, 8));
  EXPECT_EQ(Who(OpKind::kTensorReduce, {.world = 8, .tensor = 4}, 0), Pair(4, 4));
  // Two whole groups of three to a host: none of them is cut.
  EXPECT_EQ(Who(OpKind::kTensorReduce, {.world = 8, .tensor = 3}, 8), Pair(3, 3));
}

// Two hosts of 8: of a context group of 8 with two tensor ranks each, four to a host.
TEST(Links, ContextRanksExchangeWithAllAtOnce) {
  const auto who = [](int context, int tensor, int host) {
    PlanOptions options = Options({.world = 16 / tensor, .tensor = tensor});
    options.context = context;
    const Participants found = ParticipantsOf(OpKind::kTokensToHeads, options, host);
    return Pair(found.ranks, found.on_a_host);
  };
  EXPECT_EQ(who(4, 2, 8), Pair(4, 4));
  EXPECT_EQ(who(8, 2, 8), Pair(8, 4));
  EXPECT_EQ(who(8, 2, 0), Pair(8, 8));
  PlanOptions options = Options({.world = 16});
  options.context = 16;
  DeviceProfile profile;
  profile.host_bandwidth = 100;
  profile.network_bandwidth = 10;
  profile.ranks_per_host = 8;
  profile.collective_seconds = 1;
  // 8 of the 15 others are on the other host.
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpKind::kHeadsToTokens, 150, options, profile), 8 + 1);
}

// Two hosts of 8: of expert ranks those beside each other, of their groups every fourth.
TEST(Links, ExpertRanksAreNeighbours) {
  PlanOptions options = Options({.world = 16, .stage = 1});
  options.expert = 4;
  const auto who = [&](OpKind kind, bool of_experts) {
    const Participants found = ParticipantsOf(kind, options, 8, of_experts);
    return Pair(found.ranks, found.on_a_host);
  };
  EXPECT_EQ(who(OpKind::kRowsToExperts, false), Pair(4, 4));
  EXPECT_EQ(who(OpKind::kReduceGradients, true), Pair(4, 2));
  EXPECT_EQ(who(OpKind::kReduceGradients, false), Pair(16, 8));
  options.expert = 16;
  EXPECT_EQ(who(OpKind::kRowsFromExperts, false), Pair(16, 8));
  EXPECT_EQ(who(OpKind::kGatherParameters, true), Pair(1, 1));
}

// 4 data x 2 context x 2 stages x 2 tensor ranks: hosts of 8 have both stages of a data rank, hosts
// of 4 the context ranks of one stage, hosts of 2 the tensor ranks alone.
TEST(Links, ContextRanksOfAStageShareAHost) {
  const auto who = [](OpKind kind, int host) {
    PlanOptions options = Options({.world = 8, .tensor = 2, .stage = 1});
    options.context = 2;
    options.pipeline = 2;
    const Participants found = ParticipantsOf(kind, options, host);
    return Pair(found.ranks, found.on_a_host);
  };
  EXPECT_EQ(who(OpKind::kStageSend, 8), Pair(2, 2));
  EXPECT_EQ(who(OpKind::kStageSend, 4), Pair(2, 1));
  EXPECT_EQ(who(OpKind::kReduceGradients, 8), Pair(8, 2));
  EXPECT_EQ(who(OpKind::kReduceGradients, 4), Pair(8, 2));
  EXPECT_EQ(who(OpKind::kReduceGradients, 2), Pair(8, 1));
}

TEST(Links, DataRanksLieTensorRanksApart) {
  EXPECT_EQ(Who(OpKind::kReduceGradients, {.world = 16, .stage = 1}, 8), Pair(16, 8));
  EXPECT_EQ(Who(OpKind::kReduceGradients, {.world = 16, .tensor = 4, .stage = 1}, 8), Pair(16, 2));
  EXPECT_EQ(Who(OpKind::kGatherParameters, {.world = 16, .tensor = 4, .stage = 3, .group = 2}, 8),
            Pair(2, 2));
  EXPECT_EQ(Who(OpKind::kReduceReplicas, {.world = 16, .tensor = 4, .stage = 3, .group = 2}, 8),
            Pair(8, 1));
  EXPECT_EQ(Who(OpKind::kReduceScalars, {.world = 16, .tensor = 4, .stage = 1}, 8), Pair(64, 8));
  // What all data ranks have alike, whatever is sharded.
  EXPECT_EQ(Who(OpKind::kAverageStatistics, {.world = 16, .stage = 1, .group = 8}, 8), Pair(16, 8));
}

// Two islands of 16 ranks, on hosts of 8: of each rank its like is elsewhere. And of four.
TEST(Links, IslandsMeetAcrossHosts) {
  PlanOptions options = {.islands = 2, .world = 16};
  const auto who = [&] { return ParticipantsOf(OpKind::kAverageIslands, options, 8); };
  EXPECT_EQ(Pair(who().ranks, who().on_a_host), Pair(2, 1));
  options = {.islands = 4, .world = 4};
  EXPECT_EQ(Pair(who().ranks, who().on_a_host), Pair(4, 2));
  options = {.islands = 4, .world = 2};
  EXPECT_EQ(Pair(who().ranks, who().on_a_host), Pair(4, 4));
}

// Groups of 6 on hosts of 8: the second one has two ranks on the first host and four on the next.
TEST(Links, AGroupThatLiesAcrossHostsIsHeldUpByItsSmallestPart) {
  EXPECT_EQ(Who(OpKind::kGatherParameters, {.world = 24, .stage = 3, .group = 6}, 8), Pair(6, 2));
  EXPECT_EQ(Who(OpKind::kGatherParameters, {.world = 24, .stage = 3, .group = 12}, 8), Pair(12, 4));
  EXPECT_EQ(Who(OpKind::kReduceGradients, {.world = 14, .stage = 1}, 8), Pair(14, 6));
  EXPECT_EQ(Who(OpKind::kGatherParameters, {.world = 6, .stage = 3, .group = 3}, 8), Pair(3, 3));
}

DeviceProfile Links() {
  DeviceProfile profile;
  profile.host_bandwidth = 100;
  profile.network_bandwidth = 5;
  profile.ranks_per_host = 8;
  return profile;
}

TEST(Links, BytesTakeTheSlowerLink) {
  const auto seconds = [](OpKind kind, const Mesh& mesh) {
    return CollectiveSeconds(kind, 400, Options(mesh), Links());
  };
  EXPECT_DOUBLE_EQ(seconds(OpKind::kTensorReduce, {.world = 8, .tensor = 4}), 4);
  // Sixteen tensor ranks on two hosts, by eight adapters of 5.
  EXPECT_DOUBLE_EQ(seconds(OpKind::kTensorReduce, {.world = 4, .tensor = 16}), 10);
  // Two data ranks of each host, since four tensor ranks stand for one: two adapters.
  EXPECT_DOUBLE_EQ(seconds(OpKind::kReduceGradients, {.world = 16, .tensor = 4, .stage = 1}), 40);
  EXPECT_DOUBLE_EQ(CollectiveSeconds(OpKind::kReduceGradients, 0, Options({.world = 2}), Links()),
                   0);
}

// All-reduces by trees: log2 of the ranks. Gathers by rings: of 32 ranks on 4 hosts, three
// doublings in each host and three ways between hosts.
TEST(Links, RingsWaitForEveryHost) {
  DeviceProfile profile = Links();
  profile.host_bandwidth = profile.network_bandwidth = 1e30;
  profile.collective_seconds = 1;
  const auto ways = [&](OpKind kind, const Mesh& mesh) {
    return CollectiveSeconds(kind, 1, Options(mesh), profile);
  };
  EXPECT_DOUBLE_EQ(ways(OpKind::kReduceGradients, {.world = 32}), 5);
  EXPECT_DOUBLE_EQ(ways(OpKind::kGatherParameters, {.world = 32, .stage = 3}), 4 * 3 + 3);
  EXPECT_DOUBLE_EQ(ways(OpKind::kGatherParameters, {.world = 8, .stage = 3}), 3);
  EXPECT_DOUBLE_EQ(ways(OpKind::kReduceGradients, {.world = 2048, .tensor = 8, .stage = 2}), 2047);
  EXPECT_DOUBLE_EQ(ways(OpKind::kTensorReduce, {.world = 2, .tensor = 8}), 3);
}

// Two ranks of a host use a network that has a tenth of what one's core moves, for each.
TEST(Links, CoresComputeWhileAHostsNetworkIsSlow) {
  PlanOptions options = Options({.world = 4});
  DeviceProfile profile;
  profile.overlap = 0;
  profile.host_bandwidth = 1e9;
  profile.network_bandwidth = 1e8;
  profile.ranks_per_host = 2;
  const auto overlap = [&] { return OverlapOf(OpKind::kReduceGradients, options, profile); };
  EXPECT_DOUBLE_EQ(overlap(), 0);  // of a GPU as it is
  options.device = DeviceKind::kCpu;
  EXPECT_DOUBLE_EQ(overlap(), 0.8);
  profile.overlap = 0.5;
  EXPECT_DOUBLE_EQ(overlap(), 0.9);
  profile.overlap = 0;
  profile.network_bandwidth = 3e9;
  EXPECT_DOUBLE_EQ(overlap(), 0);
  profile.network_bandwidth = 1e8;
  profile.ranks_per_host = 4;
  EXPECT_DOUBLE_EQ(overlap(), 0);  // it stays on the host
  options.tensor = 4;
  options.world = 2;
  EXPECT_DOUBLE_EQ(OverlapOf(OpKind::kTensorReduce, options, profile), 0);
}

}  // namespace
}  // namespace milepost::plan
