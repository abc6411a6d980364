/**
 * A histogram for a prom-client registry whose observations are plain numbers until somebody scrapes. prom-client's own
 * finds the bucket of each by a key made of text, which cost as much as all else that is reported of a small exchange.
 */
import type { Metric, Registry } from 'prom-client';

/**
 * @param bounds - upper bounds of the buckets, in ascending order; the last bucket, `+Inf`, comes by itself.
 * @returns what takes an observation.
 */
export function createHistogram(
  registry: Registry,
  name: string,
  help: string,
  bounds: readonly number[],
): (value: number) => void {
  const counts = new Float64Array(bounds.length + 1);
  let sum = 0;
  const get = async (): Promise<object> => {
    let count = 0;
    const buckets = [...bounds, '+Inf'].map((le, bucket) => {
      count += counts[bucket]!;
      return { metricName: `${name}_bucket`, labels: { le }, value: count };
    });
    const totals = [
      { metricName: `${name}_sum`, labels: {}, value: sum },
      { metricName: `${name}_count`, labels: {}, value: count },
    ];
    return { name, help, type: 'histogram', aggregator: 'sum', values: [...buckets, ...totals] };
  };
  // What a registry asks of a metric; the types know none but the library's own.
  registry.registerMetric({ name, help, labelNames: [], get } as unknown as Metric);
  return (value) => {
    let bucket = 0;
    while (bucket < bounds.length && value > bounds[bucket]!) bucket += 1;
    counts[bucket]! += 1;
    sum += value;
  };
}
