// SPDX-License-Identifier: Apache-2.0
#include "io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "headrace/error.h"

namespace headrace::io {
namespace {

constexpr const char* kExpected = "a readable file";

std::string reason_of(int error) { return std::generic_category().message(error); }

class Descriptor {
 public:
  // Without O_NONBLOCK, opening a named pipe would wait for its writer before its kind can be checked.
  explicit Descriptor(const std::filesystem::path& path)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (value_ < 0) {
      throw Error(path.string(), kExpected, reason_of(errno));
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { ::close(value_); }

  [[nodiscard]] int value() const noexcept { return value_; }

 private:
  int value_;
};

}  // namespace

MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  const Descriptor descriptor(path_);
  struct ::stat status {};
  if (::fstat(descriptor.value(), &status) != 0) {
    throw Error(path_.string(), kExpected, reason_of(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(path_.string(), kExpected, S_ISDIR(status.st_mode) ? "a directory" : "a special file");
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) {
    return;  // an empty mapping is not allowed
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.value(), 0);
  if (data == MAP_FAILED) {
    throw Error(path_.string(), kExpected, reason_of(errno));
  }
  bytes_ = {static_cast<std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) {
    ::munmap(bytes_.data(), bytes_.size());
  }
}

}  // namespace headrace::io
