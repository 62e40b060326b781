// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Marks what the library offers. Everything else is hidden: a shared library exports the marked names and no others.
#if defined(__GNUC__)
#define HEADRACE_EXPORT __attribute__((visibility("default")))
#else
#define HEADRACE_EXPORT
#endif
