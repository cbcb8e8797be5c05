#include "worker/script/position/python_stack.h"

#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace milepost::worker {
namespace {

constexpr char kOther[] =
    "Thread 0x00007f7 (most recent call first):\n"
    "  File \"/usr/lib/python3.11/threading.py\", line 982 in run\n\n";

TEST(PythonStackTest, TheMainThreadsOwnLineAndWhatItIsIn) {
  EXPECT_EQ(
      PlaceInStack(absl::StrCat(kOther,
                                "Current thread 0x00007f8 (most recent call first):\n"
                                "  File \"/v/site-packages/torch/distributed/c10d.py\", line "
                                "4181 in all_reduce\n"
                                "  File \"/v/site-packages/torch/logger.py\", line 8 in call\n"
                                "  File \"/job/lib/loop.py\", line 19 in step\n"
                                "  File \"/job/train.py\", line 20 in <module>\n"),
                   "/job"),
      "lib/loop.py:19 (step), in all_reduce of c10d.py");
  // Python 3.14 names threads.
  EXPECT_EQ(PlaceInStack("Thread 0x7 [python3] (most recent call first):\n"
                         "  File \"/elsewhere/train.py\", line 3 in <module>\n",
                         "/job"),
            "train.py:3 (<module>)");
  EXPECT_EQ(PlaceInStack(kOther, ""), "run of threading.py");
}

TEST(PythonStackTest, TheLastTimeCounts) {
  EXPECT_EQ(PlaceInStack("Current thread 0x1 (most recent call first):\n"
                         "  File \"a.py\", line 1 in f\n"
                         "Current thread 0x1 (most recent call first):\n"
                         "  File \"a.py\", line 2 in g\n",
                         ""),
            "a.py:2 (g)");
}

TEST(PythonStackTest, OtherTextSaysNothing) {
  for (const std::string& text : {std::string(), std::string("x"), std::string("  File \""),
                                  std::string("  File \"a\", line "), std::string(100, '\0'),
                                  std::string("  File \"a\", line 3\n")}) {
    EXPECT_EQ(PlaceInStack(text, ""), "") << text;
  }
  EXPECT_EQ(PlaceInStack("  File \"\xff.py\", line 3 in \xfe\n", ""), "?.py:3 (?)");
}

}  // namespace
}  // namespace milepost::worker
