/** The filter of `core/duplicates.ts`, over buffers. */
import { DuplicateFilter as Filter } from '../core/duplicates.ts';

export class DuplicateFilter extends Filter<Buffer> {}
