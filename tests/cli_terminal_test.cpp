// SPDX-License-Identifier: Apache-2.0
// What people see: line lengths, progress, rows that come as they are measured.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <filesystem>
#include <string>

#include "headrace/dtype.h"
#include "headrace/profile.h"
#include "support/cli.h"
#include "support/files.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;
using test::copy_config;
using test::Json;
using test::lines_beyond;
using test::recording;
using test::Result;
using test::run;
using test::run_on_terminal;
using test::TemporaryFolder;

constexpr std::size_t kColumns = 80;
using Lines = std::vector<std::string>;

TEST(Cli, HelpFits80Columns) {
  for (const std::string command : {"", "models", "route", "prefill", "verify", "validate", "bench", "doctor"}) {
    SCOPED_TRACE(command);
    const Result help = run(command + " --help");
    EXPECT_EQ(help.status, 0);
    EXPECT_EQ(lines_beyond(help.out, kColumns), Lines{});
  }
}

TEST(Cli, TablesFit80Columns) {
  const TemporaryFolder folder;
  copy_config("deepseek_v32", folder.path());
  for (const std::string& arguments :
       {std::string("models"), std::string("--version"),
        "validate --recording " + recording("glm5_next") + "/recording.safetensors",
        std::string("route --model glm-5.3-flash --tp 4 --batch 2048,1x3000+1096,4x1+8k,16k"),
        std::string("route --model glm-5 --batch 64x1000000+1000000 --kv-cache-dtype fp8_ds_mla"),
        "prefill --check --tp 2 --batch 100,1+200,0+5 --prefill-chunk 60 --model " + folder.path().string()}) {
    SCOPED_TRACE(arguments);
    const Result result = run(arguments);
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(lines_beyond(result.out, kColumns), Lines{}) << result.out;
  }
}

TEST(Cli, EveryColumnOfATableIsShownHoweverNarrow) {
  const TemporaryFolder folder;
  for (const int columns : {60, 80, 110, 250}) {
    SCOPED_TRACE(columns);
    const Result models = run_on_terminal("models", columns, folder.path());
    EXPECT_EQ(lines_beyond(models.out, static_cast<std::size_t>(columns)), Lines{}) << models.out;
    for (const char* text :
         {"glm-5.3-flash", "glm5_next", "11/0/34", "256/0/256", "32 x 128", "kpool(2048, 4, tail)", "1024"}) {
      EXPECT_NE(models.out.find(text), std::string::npos) << text;
    }
  }
}

TEST(Cli, AWideTerminalIsUsed) {
  const TemporaryFolder folder;
  const std::string route = "route --model glm-5.3-flash --batch 3000 --profile nominal";
  EXPECT_EQ(lines_beyond(run_on_terminal(route, 80, folder.path()).out, 80), Lines{});
  const Result wide = run_on_terminal(route, 110, folder.path());
  EXPECT_FALSE(lines_beyond(wide.out, 80).empty()) << wide.out;
  EXPECT_EQ(lines_beyond(wide.out, 110), Lines{}) << wide.out;
}

TEST(Cli, NotesAreWrappedOnATerminalOnly) {
  const TemporaryFolder folder;
  const std::string route = "route --model glm-5 --batch 4 --profile nominal";
  for (const int columns : {66, 80, 250}) {
    SCOPED_TRACE(columns);
    const std::string out = run_on_terminal(route, columns, folder.path()).out;
    EXPECT_EQ(out.rfind("headrace: note: rms_norm_eps: 1e-05. ", 0), 0U) << out;
    EXPECT_NE(out.find("\n  "), std::string::npos) << out;
    const std::string told = out.substr(0, out.find("read as engines do") + 1);
    EXPECT_EQ(lines_beyond(told, static_cast<std::size_t>(std::min(columns, 80))), Lines{}) << out;
  }
  const std::string plain = run(route).err;
  EXPECT_EQ(std::count(plain.begin(), plain.end(), '\n'), 1) << plain;
}

/// Whether this machine's rates for bfloat16 are kept in a folder.
bool has_profile(const fs::path& cache) {
  const fs::path folder = cache / "headrace";
  return fs::exists(folder) && !fs::is_empty(folder);
}

TEST(Cli, RatesAreNotMeasuredWhereNothingIsPredicted) {
  const TemporaryFolder folder;
  copy_config("deepseek_v32", folder.path());
  const std::string small = folder.path().string();
  const fs::path cache = folder.path() / "cache";
  for (const std::string& arguments :
       {std::string("route --model glm-5 --batch 0"), std::string("route --model glm-5 --batch 0,0+7 --json"),
        "prefill --batch 0 --model " + small, std::string("route --model glm-5 --batch 4k --force dense_mha"),
        std::string("route --model glm-5 --batch 4k --workspace-limit 1K"),
        "prefill --force dense_mha --batch 100+100 --model " + small}) {
    static_cast<void>(run_on_terminal(arguments, 80, cache));
    EXPECT_FALSE(has_profile(cache)) << arguments;
  }
  const Json document = run("route --model glm-5 --batch 0 --profile auto --json").json();
  EXPECT_EQ(document.at("profile"), "nominal");
}

TEST(Cli, MeasuringRatesShowsProgressOnATerminalOnly) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "measuring takes minutes under a sanitizer";
#endif
  const TemporaryFolder folder;
  const std::string route = "route --model glm-5 --batch 4k --threads 1 --dtype float32";
  const Result shown = run_on_terminal(route, 80, folder.path());
  EXPECT_EQ(shown.status, 0) << shown.out;
  EXPECT_NE(shown.out.find("measuring this machine, once ["), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("\x1b[K"), std::string::npos) << "the bar is not taken away";
  EXPECT_LT(shown.out.rfind(" %"), shown.out.find("requests")) << "the bar comes after the answer";
  const Result piped = run(route + " --profile auto");
  EXPECT_EQ(piped.status, 0);
  EXPECT_EQ(piped.out.find("measuring"), std::string::npos);
  EXPECT_EQ(piped.err.find("headrace: note: measuring this machine's rates, once;"), 0U) << piped.err;
  EXPECT_EQ(piped.err.find('%'), std::string::npos) << piped.err;
}

/// `bench` while it runs.
class RunningBench {
 public:
  RunningBench() {
    std::array<int, 2> ends{};
    if (pipe(ends.data()) != 0) {
      return;
    }
    child_ = fork();
    if (child_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      close(ends[0]);
      close(ends[1]);
      const std::string program = test::binary();
      execl(program.c_str(), program.c_str(), "bench", "--repetitions", "1", nullptr);
      _exit(127);
    }
    close(ends[1]);
    out_ = ends[0];
  }
  RunningBench(const RunningBench&) = delete;
  RunningBench& operator=(const RunningBench&) = delete;
  ~RunningBench() {
    if (child_ > 0) {
      kill(child_, SIGKILL);
      waitpid(child_, nullptr, 0);
    }
    close(out_);
  }

  /// The next line; empty at the end.
  std::string line() const {
    std::string text;
    for (char c = 0; read(out_, &c, 1) == 1 && c != '\n';) {
      text += c;
    }
    return text;
  }
  /// Whether anything that was not read yet has been printed.
  [[nodiscard]] bool has_more() const {
    pollfd wanted{out_, POLLIN, 0};
    return poll(&wanted, 1, 0) > 0;
  }

 private:
  pid_t child_ = -1;
  int out_ = -1;
};

TEST(Cli, BenchPrintsARowOnceItIsMeasured) {
  const RunningBench bench;
  std::string line;
  for (int i = 0; i < 20 && !line.starts_with("oneDNN"); ++i) {
    line = bench.line();
    EXPECT_LE(line.size(), kColumns) << line;
  }
  ASSERT_TRUE(line.starts_with("oneDNN")) << line;
  EXPECT_FALSE(bench.has_more()) << "the other rows were printed with the first";
}

}  // namespace
}  // namespace headrace
