import { setTimeout as pause } from 'node:timers/promises';

/** What a tool may use while it runs. */
export interface ToolRun {
  readonly signal: AbortSignal;
  /** Counts an order and returns its number: the side effect that must not happen twice. */
  placeOrder(): number;
  progress(done: number, total: number): void;
}

export interface ToolResult {
  readonly content: readonly { readonly type: 'text'; readonly text: string }[];
  readonly isError?: true;
}

interface Tool {
  readonly listing: { readonly name: string; readonly [field: string]: unknown };
  run(args: Readonly<Record<string, unknown>>, run: ToolRun): ToolResult | Promise<ToolResult>;
}

const text = (value: string): ToolResult => ({ content: [{ type: 'text', text: value }] });
/** A wrong argument is a tool's own error, so that the model can read it and correct itself (MCP 2025-11-25, tools). */
const wrong = (value: string): ToolResult => ({ ...text(value), isError: true });

function within(value: unknown, low: number, high: number, fallback: number): number | undefined {
  if (value === undefined) return fallback;
  return typeof value === 'number' && Number.isInteger(value) && value >= low && value <= high ? value : undefined;
}

/** The tools of the demo server, in the order of `tools/list`. */
export const TOOLS: readonly Tool[] = [
  {
    listing: {
      name: 'place_order',
      title: 'Place an order',
      description: 'Places an order and says which number it got. Calling it again places another one.',
      inputSchema: { type: 'object', properties: { item: { type: 'string' } } },
      annotations: { readOnlyHint: false, idempotentHint: false },
    },
    run({ item = 'tea' }, { placeOrder }) {
      return typeof item === 'string' ? text(`Order ${placeOrder()} placed: ${item}`) : wrong('item must be a string');
    },
  },
  {
    listing: {
      name: 'count_stock',
      title: 'Count the stock',
      description: 'Takes its time and reports progress after every shelf.',
      inputSchema: {
        type: 'object',
        properties: {
          shelves: { type: 'integer', minimum: 1, maximum: 500, default: 10 },
          pauseMs: { type: 'integer', minimum: 0, maximum: 5000, default: 100 },
        },
      },
      annotations: { readOnlyHint: true },
    },
    async run(args, { progress, signal }) {
      const shelves = within(args['shelves'], 1, 500, 10);
      const pauseMs = within(args['pauseMs'], 0, 5000, 100);
      if (shelves === undefined) return wrong('shelves must be a whole number from 1 to 500');
      if (pauseMs === undefined) return wrong('pauseMs must be a whole number from 0 to 5000');
      for (let shelf = 1; shelf <= shelves; shelf += 1) {
        await pause(pauseMs, undefined, { signal });
        progress(shelf, shelves);
      }
      return text(`${shelves} shelves counted`);
    },
  },
];
