import { afterAll, describe, expect, test } from "vitest";
import { ggmlType, openGgmlDevice, ropeMode } from "../../src/llama/ggml.ts";

const device = openGgmlDevice({ device: "cpu", nThreads: 1 });
const { ggml } = device;
afterAll(() => device.close());

const roomForTests = 1 << 18;

describe("GgmlDevice", () => {
  test("multiplies as the definition says: y[j,i] = sum_k a[k,j] x[k,i]", async () => {
    const context = device.newContext(roomForTests);
    const a = ggml.ggml_new_tensor_2d(context, ggmlType.F32, 3, 2);
    const x = ggml.ggml_new_tensor_2d(context, ggmlType.F32, 3, 4);
    const y = ggml.ggml_mul_mat(context, a, x);
    ggml.ggml_set_output(y);
    const graph = ggml.ggml_new_graph_custom(context, 64, false);
    ggml.ggml_build_forward_expand(graph, y);
    const buffer = device.allocate(context);
    const aData = Float32Array.from({ length: 6 }, (_, i) => i + 1);
    const xData = Float32Array.from({ length: 12 }, (_, i) => (i % 5) - 2);
    device.set(a, aData);
    device.set(x, xData);
    const expected = Array.from({ length: 8 }, (_, n) => {
      const [j, i] = [n % 2, Math.floor(n / 2)];
      return [0, 1, 2].reduce((sum, k) => sum + (aData[3 * j + k] as number) * (xData[3 * i + k] as number), 0);
    });
    device.compute(graph);
    expect([...device.get(y, new Float32Array(8))]).toEqual(expected);
    device.set(x, new Float32Array(12));
    await device.computeAsync(graph);
    expect([...device.get(y, new Float32Array(8))]).toEqual(Array.from({ length: 8 }, () => 0));
    ggml.ggml_backend_buffer_free(buffer);
    ggml.ggml_free(context);
  });

  test("takes the optional arguments: softmax without a mask, rope without factors", () => {
    const context = device.newContext(roomForTests);
    const x = ggml.ggml_new_tensor_3d(context, ggmlType.F32, 4, 1, 2);
    const positions = ggml.ggml_new_tensor_1d(context, ggmlType.I32, 8);
    const p = ggml.ggml_soft_max_ext(context, x, null, 1, 0);
    const r = ggml.ggml_rope_multi(context, x, positions, null, 4, Int32Array.from([1, 1, 0, 0]), ropeMode.imrope, 0, 10_000, 1, 0, 1, 32, 1);
    const graph = ggml.ggml_new_graph_custom(context, 64, false);
    for (const t of [p, r]) {
      ggml.ggml_set_output(t);
      ggml.ggml_build_forward_expand(graph, t);
    }
    const buffer = device.allocate(context);
    device.set(x, Float32Array.from([0, 0, 0, 0, 1, 0, 0, 0]));
    device.set(positions, Int32Array.from([0, 1, 0, 1, 0, 1, 0, 0]));
    device.compute(graph);
    const soft = device.get(p, new Float32Array(8));
    expect([...soft.subarray(0, 4)]).toEqual([0.25, 0.25, 0.25, 0.25]);
    expect(soft[4]).toBeCloseTo(Math.E / (Math.E + 3), 6);
    const rotated = device.get(r, new Float32Array(8));
    expect(rotated[4]).toBeCloseTo(Math.cos(1), 5);
    expect(rotated[6]).toBeCloseTo(Math.sin(1), 5);
    ggml.ggml_backend_buffer_free(buffer);
    ggml.ggml_free(context);
  });

  test("refuses bytes outside a tensor, and use after close", () => {
    const context = device.newContext(roomForTests);
    const t = ggml.ggml_new_tensor_1d(context, ggmlType.F32, 2);
    const buffer = device.allocate(context);
    expect(() => device.set(t, new Float32Array(3))).toThrow("outside a tensor of 8 bytes");
    expect(() => device.get(t, new Float32Array(2), 4)).toThrow("outside");
    ggml.ggml_backend_buffer_free(buffer);
    ggml.ggml_free(context);
    const second = openGgmlDevice({ device: "cpu" });
    second.close();
    expect(() => second.backend).toThrow("closed");
  });
});
