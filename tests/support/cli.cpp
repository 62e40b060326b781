// SPDX-License-Identifier: Apache-2.0
#include "support/cli.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

namespace headrace::test {
namespace {

namespace fs = std::filesystem;

std::string with_profile(const std::string& arguments) {
  for (const std::string command : {"route", "prefill"}) {
    if (arguments.starts_with(command + " ") && arguments.find("--profile") == std::string::npos &&
        arguments.find("--help") == std::string::npos) {
      return command + " --profile nominal" + arguments.substr(command.size());
    }
  }
  return arguments;
}

int exit_status(int status) noexcept { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

Result run(const std::string& arguments) {
  const TemporaryFolder folder;
  const fs::path err = folder.path() / "stderr";
  const std::string command = "XDG_CACHE_HOME=" + folder.path().string() + " " + HEADRACE_BINARY + " " +
                              with_profile(arguments) + " 2>" + err.string();
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    throw std::runtime_error("popen failed");
  }
  Result result;
  std::array<char, 4096> buffer{};
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    result.out.append(buffer.data(), n);
  }
  result.status = exit_status(pclose(pipe));
  result.err = read_file(err);
  return result;
}

Result run_on_terminal(const std::string& arguments, int columns, const fs::path& cache) {
  const std::string command = "XDG_CACHE_HOME=" + cache.string() + " exec " + HEADRACE_BINARY + " " + arguments;
  ::winsize size{};
  size.ws_row = 24;
  size.ws_col = static_cast<std::uint16_t>(columns);
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) {
    throw std::runtime_error("forkpty failed");
  }
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  Result result;
  std::array<char, 4096> buffer{};
  for (ssize_t n = 0; (n = read(terminal, buffer.data(), buffer.size())) > 0;) {  // fails once the child is gone
    result.out.append(buffer.data(), static_cast<std::size_t>(n));
  }
  close(terminal);
  int status = 0;
  waitpid(child, &status, 0);
  result.status = exit_status(status);
  std::erase(result.out, '\r');
  return result;
}

std::vector<std::string> lines_beyond(const std::string& text, std::size_t width) {
  std::vector<std::string> beyond;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > width) {
      beyond.push_back(line);
    }
  }
  return beyond;
}

std::string binary() { return HEADRACE_BINARY; }

int status_of(const std::string& arguments_and_redirections) {
  // NOLINTNEXTLINE(cert-env33-c,concurrency-mt-unsafe): it is the shell's redirections that are tested
  return exit_status(std::system((std::string(HEADRACE_BINARY) + " " + arguments_and_redirections).c_str()));
}

void expect_error(const std::string& arguments, int status) {
  SCOPED_TRACE(arguments);
  const Result plain = run(arguments);
  EXPECT_EQ(plain.status, status);
  EXPECT_EQ(plain.out, "");
  EXPECT_EQ(plain.err.substr(0, 10), "headrace: ") << plain.err;
  EXPECT_EQ(std::count(plain.err.begin(), plain.err.end(), '\n'), 1) << plain.err;
  const Result json = run(arguments + " --json");
  EXPECT_EQ(json.status, status);
  const Json document = json.json();
  EXPECT_EQ(document.at("schema"), 1);
  for (const char* field : {"argument", "expected", "actual"}) {
    EXPECT_TRUE(document.at("error").at(field).is_string()) << field;
  }
}

std::string recording(const std::string& name) { return std::string(HEADRACE_TEST_DATA) + "/recordings/" + name; }

const std::vector<std::string>& recordings() {
  static const std::vector<std::string> names{"deepseek_v32", "glm5_next", "glm_moe_dsa", "glm_moe_dsa_8heads"};
  return names;
}

void copy_config(const std::string& name, const fs::path& folder) {
  fs::copy_file(fs::path(recording(name)) / "config.json", folder / "config.json");
}

}  // namespace headrace::test
