// SPDX-License-Identifier: Apache-2.0
// Feeds every file of the folders and files it is given to the target it is linked with: what libFuzzer does with a
// corpus, for a build without libFuzzer.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "target.h"

namespace {

std::vector<std::filesystem::path> files_below(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::is_directory(path)) {
    return {path};
  }
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

/// In memory of exactly its size, so that a sanitizer sees any read past the end.
std::vector<std::uint8_t> read(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    throw std::runtime_error("cannot be read");
  }
  const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
  return {bytes.begin(), bytes.end()};
}

bool passes(const std::filesystem::path& file) {
  // Before the run, for a crash says nothing of the input.
  std::printf("%s\n", file.c_str());
  static_cast<void>(std::fflush(stdout));
  try {
    const std::vector<std::uint8_t> input = read(file);
    LLVMFuzzerTestOneInput(input.data(), input.size());
    return true;
  } catch (const std::exception& error) {
    std::printf("  FAILED: %s\n", error.what());
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) {
  int files = 0;
  int failed = 0;
  for (int i = 1; i < argc; ++i) {
    for (const std::filesystem::path& file : files_below(argv[i])) {
      ++files;
      failed += passes(file) ? 0 : 1;
    }
  }
  std::printf("%d inputs, %d failed\n", files, failed);
  return files > 0 && failed == 0 ? 0 : 1;  // a corpus that is not there guards nothing
}
