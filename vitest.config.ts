import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    testTimeout: 60_000,
    hookTimeout: 120_000,
    // Two native engines with two threads each on two cores practically hang.
    maxWorkers: 2,
    reporters: ["default"],
  },
});
