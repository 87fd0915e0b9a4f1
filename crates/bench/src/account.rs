//! What processes have used: CPU, memory, context switches of whole process trees.
