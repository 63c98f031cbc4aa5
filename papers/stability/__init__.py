"""When asynchronous SGD is stable on the quadratic model: the theory of PipeMare, § 3 and appendices B and D."""
